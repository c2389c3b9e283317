# SPDX-License-Identifier: Apache-2.0
"""``python -m relax_ext MODEL``: what importing relax_ext changes for one model."""

import sys

from relax_ext.cli import main
from topi_ext.cli.start import answer_interrupts

if __name__ == "__main__":
    answer_interrupts("relax_ext")  # where Python 3.9 did not tell that it ran this package
    sys.exit(main())
