# SPDX-License-Identifier: Apache-2.0
"""``python -m relay_ext MODEL``: what importing relay_ext changes for one model."""

import sys

from relay_ext.cli import main

if __name__ == "__main__":
    sys.exit(main())
