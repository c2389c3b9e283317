# SPDX-License-Identifier: Apache-2.0
"""Write this package's corrections of TVM as patches for TVM itself, for ``git am``.

::

    python scripts/upstream.py --base main --tree ../tvm --out patches/
    git -C ../tvm am $PWD/patches/*.patch

Patches are made for the tree that they are given: a checkout or clone of TVM, or an installed
package, whose tests and sources of C++ are not known and so not edited.  Where a file is not as an
edit expects it, nothing is written.

Exit status: 0 when the patches are written, 2 when they can't be.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from support.upstream import relax, relay
from support.upstream.series import PatchError, Tree, mails

ROOT = Path(__file__).parents[1]
BASES = {
    "main": (relax.commits, None),
    "0.27": (relax.commits, ".venv/lib/python3*/site-packages"),
    "0.26": (relax.commits, ".venv-tvm026/lib/python3*/site-packages"),
    "relay-0.17": (
        relay.commits,
        ".venv-relay/lib/python3*/site-packages/bitblas/3rdparty/tvm",
    ),
}
"""The commits for each base, and where ``make env-all env-relay`` installs it."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(
        prog="upstream.py", description="Write patches for TVM, in the form of git am."
    )
    made.add_argument("--base", required=True, choices=list(BASES), help="the TVM they are for")
    made.add_argument("--out", required=True, type=Path, help="a directory; made if need be")
    made.add_argument(
        "--tree", type=Path, help="a checkout or clone of TVM, or what holds an installed tvm"
    )
    return made


def main(argv: list[str] | None = None) -> int:
    """Write the series; the exit status."""
    given = parser().parse_args(argv)
    commits, installed = BASES[given.base]
    try:
        tree = Tree(given.tree or _installed(given.base, installed))
        patches = list(mails(commits(), tree))
    except PatchError as error:
        print(f"upstream.py: {error}", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    for name, text in patches:
        (given.out / name).write_text(text)
        print(given.out / name)
    return 0


def _installed(base: str, pattern: str | None) -> Path:
    found = sorted(ROOT.glob(pattern)) if pattern else []
    if not found:
        raise PatchError(f"--base {base} needs --tree: a checkout or clone of TVM")
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
