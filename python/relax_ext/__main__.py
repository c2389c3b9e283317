# SPDX-License-Identifier: Apache-2.0
"""``python -m relax_ext MODEL``: what importing relax_ext changes for one model."""

from conv_cli.launch import run

from .cli import main

if __name__ == "__main__":
    run("relax_ext", main)
