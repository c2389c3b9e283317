# SPDX-License-Identifier: Apache-2.0
"""``python -m relay_ext MODEL``: what importing relay_ext changes for one model."""

from relay_ext.cli import main
from topi_ext.cli.start import run

if __name__ == "__main__":
    run("relay_ext", main)
