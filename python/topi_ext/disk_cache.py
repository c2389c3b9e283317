# SPDX-License-Identifier: Apache-2.0
"""Files that one process leaves for the next: named by what they follow from, of limited size.

``TVM_CONV_CACHE`` names the folder, or is ``0``; unless given it is ``tvm-conv-ext/compiled`` where
the system keeps caches.  ``TVM_CONV_CACHE_MB`` limits its size.  Nothing here raises: what cannot
be read or written, is damaged, or belongs to another user is as if it were not there.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

VARIABLE = "TVM_CONV_CACHE"
VARIABLE_MB = "TVM_CONV_CACHE_MB"

_OFF = ("off", "0", "no", "false")
_ON = ("", "on", "1", "yes", "true")
_MAGIC = b"tvm-conv-ext 1\n"
_DIGEST = hashlib.sha256().digest_size
_DEFAULT_MB = 256
_PRIVATE = 0o700


def folder() -> Path | None:
    """Where files are, or None where there are to be none."""
    given = os.environ.get(VARIABLE, "").strip()
    if given.lower() in _OFF:
        return None
    try:
        if given.lower() not in _ON:
            return Path(given).expanduser()
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # nobody's home is known
        return None
    return home / "tvm-conv-ext" / "compiled"


def limit_bytes() -> int:
    """How large all files together may become."""
    given = os.environ.get(VARIABLE_MB, "").strip()
    return (int(given) if given.isascii() and given.isdigit() else _DEFAULT_MB) << 20


def key(*parts: str) -> str:
    """The name of what follows from `parts` and from the source of this package."""
    digest = hashlib.sha256(_source())
    for part in parts:
        content = part.encode(errors="surrogatepass")
        digest.update(b"%d " % len(content) + content)
    return digest.hexdigest()


def read(name: str) -> bytes | None:
    """What is kept under a :func:`key`; None where nothing is, or something damaged."""
    where = folder()
    if where is None:
        return None
    path = _path(where, name)
    with suppress(OSError):
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            found = file.read()
        head = len(_MAGIC) + _DIGEST
        content = found[head:]
        if found[:head] == _MAGIC + hashlib.sha256(content).digest():
            with suppress(OSError):
                os.utime(path)  # what was not used for longest is the first to go
            return content
    return None


def write(name: str, content: bytes) -> None:
    """Keep `content` under a :func:`key`: readers see all of it or nothing."""
    where = folder()
    if where is None:
        return
    path = _path(where, name)
    with suppress(OSError):
        where.parent.mkdir(parents=True, exist_ok=True)
        for private in (where, path.parent):
            private.mkdir(mode=_PRIVATE, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(content).digest() + content)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        _note(where, len(content))


def clear() -> tuple[int, int]:
    """Remove all files; how many they were, and their bytes."""
    where = folder()
    return _remove(_files(where)) if where else (0, 0)


def size() -> tuple[int, int]:
    """How many files there are, and their bytes."""
    where = folder()
    found = _files(where) if where else []
    return len(found), sum(bytes_ for _, bytes_, _ in found)


_TEMPORARY = "writing-"
_SUFFIX = ".kept"
_unseen: dict[Path, int] = {}
"""By folder, what this process has written since it last looked how much there is."""
_lock = threading.Lock()


def _path(where: Path, name: str) -> Path:
    return where / name[:2] / (name + _SUFFIX)


@cache
def _source() -> bytes:
    """What tells one version of this package from another, released or not."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for file in sorted(here.rglob("*.py")):
        digest.update(str(file.relative_to(here)).encode() + b"\0" + file.read_bytes())
    return digest.digest()


def _files(where: Path) -> list[tuple[float, int, Path]]:
    """Time of the last use, bytes and path of each, what writers left behind included."""
    found = []
    for pattern in (f"??/*{_SUFFIX}", f"??/{_TEMPORARY}*"):
        for path in where.glob(pattern):
            with suppress(OSError):
                about = path.stat()
                found.append((about.st_mtime, about.st_size, path))
    return found


def _remove(files: list[tuple[float, int, Path]]) -> tuple[int, int]:
    count = total = 0
    for _, bytes_, path in files:
        with suppress(OSError):
            path.unlink()
            count, total = count + 1, total + bytes_
    return count, total


def _note(where: Path, written: int) -> None:
    """Look whether there is too much: at first, and whenever a tenth of the limit was added."""
    with _lock:
        before = _unseen.get(where)
        now = (before or 0) + written
        is_due = before is None or now * 10 >= limit_bytes()
        _unseen[where] = 0 if is_due else now
        if is_due:
            _shrink(where)


def _shrink(where: Path) -> None:
    """Remove what was not used for longest, until a tenth of the limit is free again."""
    files = sorted(_files(where), reverse=True)
    limit = limit_bytes()
    if sum(bytes_ for _, bytes_, _ in files) <= limit:
        return
    kept = 0
    for place, (_, bytes_, _) in enumerate(files):
        kept += bytes_
        if kept > limit * 0.9:
            _remove(files[place:])
            return
