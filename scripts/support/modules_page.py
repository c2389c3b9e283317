# SPDX-License-Identifier: Apache-2.0
"""The page of the site that lists every module by the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PYTHON = Path(__file__).parents[2] / "python"
PACKAGES = ("topi_ext", "relax_ext", "relay_ext", "conv_cli", "cuda_emulator")
HEAD = """\
# Modules

Generated from the docstrings. The [design](design.md) describes how the modules work together.
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
        package = PYTHON / name
        for folder, modules in folders(package):
            title = folder.relative_to(PYTHON).as_posix()
            lines += [f"{'##' if folder == package else '###'} {title}", ""]
            lines += [f"{summary(folder / '__init__.py')}.", ""]
            if modules:
                lines += ["| module | description |", "|---|---|"]
                lines += [f"| `{module.stem}` | {summary(module)} |" for module in modules]
                lines += [""]
    return "\n".join(lines)
