# SPDX-License-Identifier: Apache-2.0
"""``python -m relax_ext MODEL``: what importing relax_ext changes for one model."""

import sys

from relax_ext.cli import main

if __name__ == "__main__":
    sys.exit(main())
