# SPDX-License-Identifier: Apache-2.0
"""Time and check a file of convolutions, in all three kinds, against PyTorch and stock TVM.

::

    python scripts/bench.py --cases scripts/cases/bench.json --rivals torch,stock --threads 2
    .venv-relay/bin/python scripts/bench.py --cases scripts/cases/bench.json --ir relay

Exit status: 0 when every result is correct, 1 when one is incorrect, 2 for an invalid command.
"""

from __future__ import annotations

import sys

from support.arguments import exit_with, parse
from support.environment import prepare


def main() -> int:
    """Run the benchmark that the command line asks for."""
    options = parse()
    prepare(options.threads)  # TVM and torch read the environment when they are imported
    from support.session import run

    try:
        return run(options)
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    exit_with(main)
