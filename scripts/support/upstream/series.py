# SPDX-License-Identifier: Apache-2.0
"""Parts of a patch series: a tree of TVM, edits at anchors, commits in the form of ``git am``.

A patch's context comes from the tree that it is made for; of TVM this project stores anchors only,
lines that an edit looks for.  An anchor that is not found exactly once stops everything.
"""

from __future__ import annotations

import ast
import difflib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CODE = Path(__file__).parent
PYTHON = CODE.parents[2] / "python"

ASF = """\
# Licensed to the Apache Software Foundation (ASF) under one
# or more contributor license agreements.  See the NOTICE file
# distributed with this work for additional information
# regarding copyright ownership.  The ASF licenses this file
# to you under the Apache License, Version 2.0 (the
# "License"); you may not use this file except in compliance
# with the License.  You may obtain a copy of the License at
#
#   http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing,
# software distributed under the License is distributed on an
# "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY
# KIND, either express or implied.  See the License for the
# specific language governing permissions and limitations
# under the License.
"""
"""Header of every file of TVM; contributions to it are under the same licence as this project."""

SPDX = "# SPDX-License-Identifier: Apache-2.0\n"
AUTHOR = "tvm-conv-ext <tvm-conv-ext@users.noreply.github.com>"


class PatchError(Exception):
    """One line: what of a tree is not as a series expects it."""


class Tree:
    """Files of TVM by their path in its repository.

    Parameters
    ----------
    place : Path
        A checkout, a git directory without one, or a directory that holds an installed ``tvm``.
        Of an installation only ``python/tvm`` is known.
    """

    def __init__(self, place: Path):
        self.place = place
        is_repository = (place / "HEAD").exists() or (place / ".git" / "HEAD").exists()
        self._is_git = is_repository and not self._is_checkout
        if not (self._is_git or self._is_checkout or (place / "tvm").is_dir()):
            raise PatchError(f"{place}: must hold python/tvm, tvm, or a git repository of TVM")

    @property
    def _is_checkout(self) -> bool:
        return (self.place / "python" / "tvm").is_dir()

    def read(self, path: str) -> str | None:
        """Return the text of a file; None where the tree has none of that path."""
        if self._is_git:
            command = ["git", "-C", str(self.place), "show", f"HEAD:{path}"]
            shown = subprocess.run(command, capture_output=True, check=False)
            return shown.stdout.decode() if shown.returncode == 0 else None
        inside = path if self._is_checkout else path.removeprefix("python/")
        found = self.place / inside
        is_file = found.is_file() and (self._is_checkout or path.startswith("python/"))
        return found.read_text() if is_file else None


@dataclass(frozen=True)
class NewFile:
    """A file that TVM does not have yet."""

    path: str
    text: str

    def applied(self, tree: Tree, before: str | None) -> str:
        """Return the text of the file."""
        if before is not None or tree.read(self.path) is not None:
            raise PatchError(f"{self.path}: exists already")
        return self.text


@dataclass(frozen=True)
class Edit:
    """Something new at an anchor.

    Parameters
    ----------
    anchor : str
        Text that the file holds exactly once.
    text : str
        What takes its place.
    until : str, optional
        Then what is replaced ends before the next place that holds this, the anchor included.
    may_be_absent : bool
        The tree may have no such file: an installation has no tests and no sources of C++.
    """

    path: str
    anchor: str
    text: str
    until: str = ""
    may_be_absent: bool = False

    def applied(self, tree: Tree, before: str | None) -> str | None:
        """Return the text of the file with the edit in it; None where there may be no file."""
        text = before if before is not None else tree.read(self.path)
        if text is None:
            if self.may_be_absent:
                return None
            raise PatchError(f"{self.path}: not in {tree.place}")
        count = text.count(self.anchor)
        if count != 1:
            raise PatchError(f"{self.path}: {count} places of {self.anchor!r}, must be one")
        start = text.index(self.anchor)
        end = start + len(self.anchor)
        if self.until:
            end = text.find(self.until, end)
            if end < 0:
                raise PatchError(f"{self.path}: nothing of {self.until!r} after {self.anchor!r}")
        return text[:start] + self.text + text[end:]


@dataclass(frozen=True)
class Substitution:
    """One replacement at several places between two anchors.

    Parameters
    ----------
    start, until : str
        The text behind `start`, which the file holds once, up to `until`.
    count : int
        How often `old` has to be there.
    """

    path: str
    old: str
    new: str
    start: str
    until: str
    count: int

    def applied(self, tree: Tree, before: str | None) -> str:
        """Return the text of the file with the change in it."""
        whole = Edit(self.path, self.start, self.start, until=self.until)
        text = before if before is not None else tree.read(self.path)
        whole.applied(tree, text)  # for its errors
        begin = (text or "").index(self.start)
        end = (text or "").index(self.until, begin)
        part = (text or "")[begin:end]
        if part.count(self.old) != self.count:
            raise PatchError(
                f"{self.path}: {part.count(self.old)} places of {self.old!r}, must be {self.count}"
            )
        return (text or "")[:begin] + part.replace(self.old, self.new) + (text or "")[end:]


def after(path: str, anchor: str, text: str) -> Edit:
    """Insert `text` behind `anchor`."""
    return Edit(path, anchor, anchor + text)


def before(path: str, anchor: str, text: str) -> Edit:
    """Insert `text` in front of `anchor`."""
    return Edit(path, anchor, text + anchor)


@dataclass(frozen=True)
class Commit:
    """One patch.

    Parameters
    ----------
    title : str
        Imperative, with upstream's tags.
    body : str
        What it changes and why.
    """

    title: str
    body: str
    edits: Sequence[NewFile | Edit | Substitution] = field(default_factory=list)
    needs: str = ""
    """A file without which the tree gets no such patch."""


def new_file(path: str, source: Path) -> NewFile:
    """Return a file of this project as one of TVM: with its licence header."""
    text = source.read_text()
    if not text.startswith(SPDX):
        raise PatchError(f"{source.name}: must start with the licence")
    return NewFile(path, ASF + text.removeprefix(SPDX))


def fragment(source: Path) -> str:
    """Return the definitions of a module of ``*_code``, without header, docstring and imports; for
    a class that stands for one of TVM's, its methods."""
    text = source.read_text()
    nodes = ast.parse(text).body
    kept = next(n for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef)))
    if isinstance(kept, ast.ClassDef):
        kept = next(n for n in kept.body if isinstance(n, ast.FunctionDef))
    first = min([kept.lineno, *(decorator.lineno for decorator in kept.decorator_list)])
    return "".join(text.splitlines(keepends=True)[first - 1 :])


TOPI_TEST = CODE / "relax_code" / "test_topi_conv_transpose.py"


def topi_commit(body: str, test: NewFile) -> Commit:
    """Return the first commit of both series: TOPI's transposed convolution."""
    testing, code = "python/tvm/topi/testing", CODE / "relax_code" / "conv_transpose_python.py"
    title = "[TOPI] Add transposed convolution of any rank without inserted zeros"
    edits: list[NewFile | Edit | Substitution] = [
        new_file(
            "python/tvm/topi/nn/conv_transpose.py",
            PYTHON / "topi_ext" / "te" / "conv_transpose.py",
        ),
        after(
            "python/tvm/topi/nn/__init__.py",
            "from .conv1d_transpose import *\n",
            "from .conv_transpose import ConvTranspose, conv_transpose\n",
        ),
        new_file(f"{testing}/conv_transpose_python.py", code),
        after(
            f"{testing}/__init__.py",
            "from .conv3d_transpose_ncdhw_python import conv3d_transpose_ncdhw_python\n",
            "from .conv_transpose_python import conv_transpose_python\n",
        ),
        test,
    ]
    return Commit(title, body, edits)


def mails(commits: Sequence[Commit], tree: Tree) -> Iterator[tuple[str, str]]:
    """File name and text of each patch, as ``git format-patch`` writes them.

    Raises
    ------
    PatchError
        Where the tree is not as an edit expects it.
    """
    now: dict[str, str] = {}
    written = []
    for commit in commits:
        if commit.needs and tree.read(commit.needs) is None:
            continue
        diffs, now = _diffs(commit, tree, now)
        written.append((commit, diffs))
    for number, (commit, diffs) in enumerate(written, 1):
        words = "".join(c if c.isalnum() else "-" for c in commit.title)
        name = f"{number:04}-{'-'.join(filter(None, words.split('-')))[:52]}.patch"
        yield name, _mail(commit, diffs, f"{number}/{len(written)}")


def _diffs(commit: Commit, tree: Tree, now: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    changed = dict(now)
    for edit in commit.edits:
        text = edit.applied(tree, changed.get(edit.path))
        if text is not None:
            changed[edit.path] = text
    diffs = []
    for path, text in changed.items():
        old = now.get(path, tree.read(path))
        if text != old:
            diffs.append(_diff(path, old, text))
    return diffs, changed


def _diff(path: str, old: str | None, new: str) -> str:
    names = "/dev/null" if old is None else f"a/{path}", f"b/{path}"
    lines = difflib.unified_diff(
        (old or "").splitlines(keepends=True), new.splitlines(keepends=True), *names
    )
    head = f"diff --git a/{path} b/{path}\n" + ("new file mode 100644\n" if old is None else "")
    return head + "".join(lines)


def _mail(commit: Commit, diffs: Sequence[str], number: str) -> str:
    head = (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n"
        f"From: {AUTHOR}\nDate: Thu, 1 Jan 1970 00:00:00 +0000\n"
        f"Subject: [PATCH {number}] {commit.title}\n\n{commit.body.strip()}\n---\n\n"
    )
    return head + "".join(diffs) + "-- \ntvm-conv-ext\n"
