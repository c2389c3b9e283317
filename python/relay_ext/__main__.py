# SPDX-License-Identifier: Apache-2.0
"""``python -m relay_ext MODEL``: what importing relay_ext changes for one model."""

import sys

from relay_ext.cli import main
from topi_ext.cli.start import answer_interrupts

if __name__ == "__main__":
    answer_interrupts("relay_ext")  # where Python 3.9 did not tell that it ran this package
    sys.exit(main())
