# SPDX-License-Identifier: Apache-2.0
"""``python -m topi_ext.emit``: a kernel in C, see :mod:`topi_ext.deploy`."""

from __future__ import annotations

import sys

from topi_ext.deploy.command import PROGRAM, main
from topi_ext.interrupts import answer_interrupts, ignore_interrupts

if __name__ == "__main__":
    answer_interrupts(PROGRAM)
    status = main()
    ignore_interrupts()
    sys.exit(status)
