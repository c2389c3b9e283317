# SPDX-License-Identifier: Apache-2.0
"""Results of a run, each written at once as a line of a file, so that an interrupted run keeps
them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Found = dict[str, Any]


class Record:
    """The results so far: a header, and lists of rows by kind.

    Parameters
    ----------
    path : Path or None
        File of the result; the lines are in a file beside it.
    header : dict
    kinds : str
        Names of the lists.
    resumes : bool
        Keep the rows that the file has.
    """

    def __init__(
        self, path: Path | None, header: Found, *kinds: str, resumes: bool = False
    ) -> None:
        self.found: Found = {"header": {}} | {kind: [] for kind in kinds}
        self._path = None if path is None else path.with_suffix(".jsonl")
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if resumes and self._path.exists():
                self.found = self.read(self._path, *kinds)
            else:
                self._path.write_text("")
        self.describe(header)

    def add(self, kind: str, row: Found) -> None:
        """Append a row."""
        self.found[kind].append(row)
        self._write(kind, row)

    def describe(self, more: Found) -> None:
        """Add to the header."""
        self.found["header"].update(more)
        self._write("header", more)

    def _write(self, kind: str, row: Found) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps([kind, row], allow_nan=False) + "\n")

    @classmethod
    def read(cls, path: Path, *kinds: str) -> Found:
        """Return the results in the lines of a file, of a complete or an interrupted run."""
        found: Found = {"header": {}} | {kind: [] for kind in kinds}
        for line in path.read_text().splitlines():
            kind, row = json.loads(line)
            if kind == "header":
                found["header"].update(row)
            else:
                found[kind].append(row)
        return found
