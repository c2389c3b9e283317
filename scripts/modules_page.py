# SPDX-License-Identifier: Apache-2.0
"""Write docs/developer/modules.md: every module of the packages, by its docstring's first sentence.

``python scripts/modules_page.py`` writes the page; with ``--check`` it only compares, and fails
where the page is not what the modules say.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "developer" / "modules.md"
PACKAGES = ("topi_ext", "relax_ext", "relay_ext", "conv_cli", "cuda_emulator")
HEAD = """\
# Modules

`python scripts/modules_page.py` generates this page from the docstrings of the modules. The
[design](design.md) describes how they work together.
"""
ROLE = re.compile(r":(?:func|mod|class|meth|attr|data|exc):`~?([^`]*)`")


def summary(module: Path) -> str:
    """Return the first sentence of a module's docstring as Markdown."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:])\s+(?=[A-Z`])", paragraph)[0].rstrip(".:")
    return ROLE.sub(r"`\1`", sentence).replace("``", "`").replace("|", "\\|")


def folders(package: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield each folder with modules, and these, the folder itself first."""
    modules = sorted(package.rglob("*.py"))
    for folder in sorted({module.parent for module in modules}):
        named = [module for module in modules if module.parent == folder]
        yield folder, [module for module in named if not module.name.startswith("__")]


def page() -> str:
    """Return the text of the page."""
    lines = [HEAD]
    for name in PACKAGES:
        package = ROOT / "python" / name
        for folder, modules in folders(package):
            title = folder.relative_to(ROOT / "python").as_posix()
            lines += [f"{'##' if folder == package else '###'} {title}", ""]
            lines += [f"{summary(folder / '__init__.py')}.", ""]
            if modules:
                lines += ["| module | description |", "|---|---|"]
                lines += [f"| `{module.stem}` | {summary(module)} |" for module in modules]
                lines += [""]
    return "\n".join(lines)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    if not parser.parse_args().check:
        PAGE.write_text(page())
        return 0
    if PAGE.read_text() == page():
        return 0
    print("docs/developer/modules.md: run python scripts/modules_page.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
