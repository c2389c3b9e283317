# SPDX-License-Identifier: Apache-2.0
"""Plans that were measured: a small file of JSON, and which one is in use.

The file says, by machine and by problem, which plan of which kernel was the fastest.  A machine and
a problem are named by all that plans depend on, so an entry for another one is never found::

    {
     "format": "tvm-conv-ext plans",
     "version": 1,
     "plans": {
      "processor=znver3 vector_bytes=32 threads=2 ...": {
       "conv n=1 c=64 k=64 ...": {"kernel": "winograd", "plan": {...}, "ms": 0.41}
      }
     }
    }

Nothing in it is believed: who finds an entry compares it with the plans that there are.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Union, cast

from ..notices import warn_once
from ..spec.problem import listed

FORMAT, VERSION = "tvm-conv-ext plans", 1

VARIABLE = "TVM_CONV_PLANS"
"""Environment variable that names the file for compilations that name none."""

Entry = Mapping[str, Any]
"""``kernel`` and ``plan``, its name and its fields; ``ms`` and ``estimate_ms``, milliseconds of
that plan and of the one that is fastest by estimate."""

Plans = Mapping[str, Mapping[str, Entry]]
"""Entries, by machine and by problem."""

AnyPath = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Database:
    """The content of a file when it was read; equal contents give the same plans.

    Attributes
    ----------
    path : str
    state : tuple of int
        State of the file, by which later versions of it are recognized.
    plans : Plans
    """

    path: str
    state: tuple[int, ...]
    plans: Plans = field(compare=False, repr=False)

    def find(self, machine: str, problem: str) -> Entry | None:
        """Return the entry of a problem, or None. Warn of a file without entries for `machine`."""
        if machine not in self.plans:
            if self.plans:
                warn_once(f"{self.path}: ignored, it has no plans for {machine}")
            return None
        return self.plans[machine].get(problem)


class DatabaseError(ValueError):
    """The reason why this version cannot read a file as a database."""


def machine_name(processor: str, machine: Any) -> str:
    """Return a machine as a line of text: the target's processor, and the properties that plans
    depend on.
    """
    return f"processor={processor or 'unnamed'} {listed(machine)}"


def plain(value: Any) -> Any:
    """Return a plan as JSON has it: fields by name, lists for tuples."""
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    return repr(value)


def read(path: AnyPath) -> Plans:
    """Return the content of a file; nothing if it does not exist.

    Raises
    ------
    DatabaseError
        It can't be read, or is of another format or version.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise DatabaseError(f"{path}: no database of plans: {reason}") from error
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatabaseError(f"{path}: no database of plans: not JSON") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DatabaseError(f"{path}: no database of plans: its format must be {FORMAT!r}")
    if found.get("version") != VERSION:
        raise DatabaseError(f"{path}: version must be {VERSION}, not {found.get('version')!r}")
    plans: Any = found.get("plans")
    if not _is_table(plans) or not all(map(_is_table, plans.values())):
        raise DatabaseError(f"{path}: plans must be objects by machine and by problem")
    return cast(Plans, plans)


def _is_table(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())


def merge(path: AnyPath, plans: Plans) -> None:
    """Add entries to a file, in the place of those for the same machine and problem.

    Another process that writes at the same time loses nothing, and who reads meanwhile sees the
    file as it was or as it is.

    Raises
    ------
    DatabaseError
        The file is something else: it is left alone.
    OSError
        It can't be written.
    """
    path = Path(path)
    with _locked(path):
        merged = {machine: dict(found) for machine, found in read(path).items()}
        for machine, found in plans.items():
            merged.setdefault(machine, {}).update(found)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(_written(merged))
            os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time: a file beside it is locked, since it itself is replaced."""
    if os.name != "posix":  # writers replace whole files there, and the last one wins
        yield
        return
    import fcntl

    beside = path.with_name(f".{path.name}.lock")
    while True:
        with open(beside, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_at(lock.fileno(), beside):
                continue  # the writer before has removed it: others lock another file now
            try:
                yield
            finally:
                beside.unlink(missing_ok=True)
            return


def _is_at(handle: int, path: Path) -> bool:
    """Return whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _written(plans: Plans) -> str:
    """Return the text of a file, an entry a line."""
    tables = []
    for machine, found in sorted(plans.items()):
        lines = [f"   {json.dumps(name)}: {json.dumps(one)}" for name, one in sorted(found.items())]
        tables.append(f"  {json.dumps(machine)}: {{\n" + ",\n".join(lines) + "\n  }")
    head = f' "format": {json.dumps(FORMAT)},\n "version": {VERSION},\n "plans": '
    return "{\n" + head + "{\n" + ",\n".join(tables) + "\n }\n}\n"


_chosen: ContextVar[Database | str | None] = ContextVar("plan_database", default="")
"""The file of :func:`using`; the empty string stands for that of the environment."""


@contextmanager
def using(path: AnyPath | None) -> Iterator[None]:
    """Make compilations inside the block, in this thread, take plans from this file, or from
    none.
    """
    before = _chosen.set(None if path is None else opened(path))
    try:
        yield
    finally:
        _chosen.reset(before)


def current() -> Database | None:
    """Return the database in use, or None."""
    chosen = _chosen.get()
    if not isinstance(chosen, str):
        return chosen
    path = os.environ.get(VARIABLE)
    return opened(path) if path else None


def opened(path: AnyPath) -> Database | None:
    """Return the current database of a file; None, with a warning, if it cannot be read."""
    path = os.path.abspath(path)
    try:
        found = os.stat(path)
        return _opened(path, (found.st_ino, found.st_size, found.st_mtime_ns))
    except OSError as error:
        warn_once(f"{path}: no plans are used: {error.strerror or error}")
    except DatabaseError as error:
        warn_once(f"{error}; no plans are used")
    return None


@lru_cache(maxsize=8)
def _opened(path: str, state: tuple[int, ...]) -> Database:
    return Database(path, state, read(path))
