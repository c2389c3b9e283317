# SPDX-License-Identifier: Apache-2.0
"""The files of the cache: named by a hash of the settings and the function, with a size limit.

``TVM_CONV_CACHE`` names the folder, or is ``0``; unless given it is ``tvm-conv-ext/compiled`` where
the system keeps caches.  ``TVM_CONV_CACHE_MB`` limits its size.  Nothing here raises: a file that
cannot be read or written is ignored.  So is one that is damaged, that was written for another key,
that is not a regular file, or that belongs to another user.

A file holds a line that names the format, its own key, a checksum of all that follows, and the
content.  The checksum detects damage.  It does not protect from the owner of the folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

VARIABLE = "TVM_CONV_CACHE"
VARIABLE_MB = "TVM_CONV_CACHE_MB"

_OFF = ("off", "0", "no", "false")
_ON = ("", "on", "1", "yes", "true")
_MAGIC = b"tvm-conv-ext 2\n"
_DEFAULT_MB = 256
_PRIVATE = 0o700


def folder() -> Path | None:
    """Return the folder of the cache, or None if it is off."""
    given = os.environ.get(VARIABLE, "").strip()
    if given.lower() in _OFF:
        return None
    try:
        if given.lower() not in _ON:
            return Path(given).expanduser()
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # there is no home directory
        return None
    return home / "tvm-conv-ext" / "compiled"


def limit_bytes() -> int:
    """Return how large all files together may become."""
    given = os.environ.get(VARIABLE_MB, "").strip()
    return (int(given) if given.isascii() and given.isdigit() else _DEFAULT_MB) << 20


def key(*parts: str) -> str:
    """Return the name of what follows from `parts` and from the source of this package."""
    digest = hashlib.sha256(_source())
    for part in parts:
        content = part.encode(errors="surrogatepass")
        digest.update(b"%d " % len(content) + content)
    return digest.hexdigest()


def read(name: str) -> bytes | None:
    """Return what is kept under a :func:`key`, or None where there is no whole file of that key."""
    where = folder()
    if where is None:
        return None
    with suppress(OSError):
        found = _read_file(_path(where, name))
        start = len(_header(name, b""))
        if found[:start] == _header(name, found[start:]):
            return found[start:]
    return None


def write(name: str, content: bytes) -> None:
    """Keep `content` under a :func:`key`.  Readers see all of it or nothing."""
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
                file.write(_header(name, content) + content)
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
    """Return how many files there are, and their bytes."""
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


def _read_file(path: Path) -> bytes:
    """Return the bytes of a regular file of this user, and note that it was used.

    Nothing else is opened for long: a named pipe would wait for a writer, a link may lead to a
    device.

    Raises
    ------
    OSError
        For anything else, and for a file that is larger than all may be together.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        about = os.fstat(handle)
        is_ours = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid()
        if not is_ours or about.st_size > limit_bytes():
            raise OSError(f"{path}: not a file of the cache")
        with open(handle, "rb", closefd=False) as file:
            found = file.read(about.st_size)
        with suppress(OSError):
            os.utime(handle)  # the least recently used file is removed first
        return found
    finally:
        os.close(handle)


def _header(name: str, content: bytes) -> bytes:
    """Return what stands in front of `content` in the file of `name`; its length is fixed."""
    start = _MAGIC + name.encode() + b"\n"
    return start + hashlib.sha256(start + content).digest()


@cache
def _source() -> bytes:
    """Return a text that differs between versions of this package, released or not."""
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
                about = path.lstat()
                if not stat.S_ISDIR(about.st_mode):
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
