# SPDX-License-Identifier: Apache-2.0
"""``python -m topi_ext.emit``: a kernel in C, see :mod:`topi_ext.deploy`."""

from __future__ import annotations

import sys

from topi_ext.deploy.command import main

if __name__ == "__main__":
    sys.exit(main())
