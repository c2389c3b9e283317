# SPDX-License-Identifier: Apache-2.0
"""Generate pages of `make docs`: modules, operators of PyTorch, help texts of the command lines.

The pages of `GENERATED` exist on the site only.

A line ``<!-- help: PACKAGE -->`` becomes what ``python -m PACKAGE --help`` prints, without TVM.
Roles of docstrings, as in ``:func:`stock` ``, become code.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

# MkDocs imports this file alone.
sys.path.insert(0, str(Path(__file__).parents[1]))
from support import modules_page, operators_page

PYTHON = Path(__file__).parents[2] / "python"
GENERATED = {
    "developer/modules.md": modules_page.page,
    "reference/pytorch-operators.md": operators_page.page,
}
"""Functions that write pages, by the path of the page."""
MARK = re.compile(r"^<!-- help: ([\w.]+) -->$", re.MULTILINE)
EMIT = "topi_ext.emit"
ROLE = re.compile(r":(?:func|mod|class|meth|attr|data|exc):<code>(.*?)</code>")


def help_of(package: str) -> str:
    """Return the help text of a command line, 88 columns wide."""
    sys.path.insert(0, str(PYTHON))
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "90"
    try:
        from conv_cli.args import parser
        from conv_cli.usage import RELAX, RELAY

        if package == EMIT:
            from topi_ext.deploy.command import parser as emit_parser

            return emit_parser().format_help()
        usage = next(one for one in (RELAX, RELAY) if one.package == package)
        return parser(usage, f"python -m {package}").format_help()
    finally:
        sys.path.remove(str(PYTHON))
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns


def on_files(files: Any, config: Any) -> Any:
    """Called by MkDocs with the files of the site: add those that are generated."""
    from mkdocs.structure.files import File

    for path, page in GENERATED.items():
        files.append(File.generated(config, path, content=page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page, before it is parsed."""
    return MARK.sub(lambda found: f"```text\n{help_of(found[1])}```", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs for each page, after it was parsed."""
    return ROLE.sub(r"<code>\1</code>", html)
