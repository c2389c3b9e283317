# SPDX-License-Identifier: Apache-2.0
"""The files of the cache: named by a hash of the settings and the function, with a size limit.

``TVM_CONV_CACHE`` names the folder, or is ``0``; unless given it is ``tvm-conv-ext/compiled`` where
the system keeps caches.  ``TVM_CONV_CACHE_MB`` limits its size.  Nothing here raises: a file that
cannot be read or written is ignored.  So is one that is damaged, that was written for another key,
that is not a regular file, or that belongs to another user.  A folder that belongs to another user,
or that others may write to, is not used.  Only files with names of the cache are ever removed, and
no link to a folder inside it is followed.

A file holds a line that names the format, its own key, a checksum of all that follows, and the
content.  The checksum detects damage.  It does not protect from the owner of the folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..notices import warn_once

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


def fault() -> str | None:
    """Return why the folder cannot be used; None where it can, or can be made."""
    where = folder()
    if where is None:
        return None
    try:
        with _opened(where):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)


def limit_bytes() -> int:
    """Return how large all files together may become."""
    given = os.environ.get(VARIABLE_MB, "").strip()
    if re.fullmatch("[0-9]{1,12}", given):
        return int(given) << 20
    if given:
        rule = f"must be a number of MiB of at most 12 digits: {_DEFAULT_MB} is taken"
        warn_once(f"{VARIABLE_MB}={given[:20]!r} {rule}")
    return _DEFAULT_MB << 20


def key(*parts: str) -> str:
    """Return the name of what follows from `parts` and from the source of this package."""
    digest = hashlib.sha256(source(Path(__file__).parent))
    for part in parts:
        content = part.encode(errors="surrogatepass")
        digest.update(b"%d " % len(content) + content)
    return digest.hexdigest()


def read(name: str) -> bytes | None:
    """Return what is kept under a :func:`key`, or None where there is no whole file of that key."""
    where = folder()
    if where is None:
        return None
    with _harmless(where), _opened(where) as root, _opened(name[:2], root) as shard:
        found = _read_file(name + _SUFFIX, shard)
        start = len(_header(name, b""))
        if found[:start] == _header(name, found[start:]):
            return found[start:]
    return None


def write(name: str, content: bytes) -> None:
    """Keep `content` under a :func:`key`.  Readers see all of it or nothing."""
    where = folder()
    if where is None or len(content) > limit_bytes():
        return
    with _harmless(where):
        where.parent.mkdir(parents=True, exist_ok=True)
        where.mkdir(mode=_PRIVATE, exist_ok=True)
        with _opened(where) as root:
            with suppress(FileExistsError):
                os.mkdir(name[:2], _PRIVATE, dir_fd=root)
            with _opened(name[:2], root) as shard:
                now = _write_file(name + _SUFFIX, shard, _header(name, content) + content)
            _shrink(root, int(name[:2], 16), now)


def clear() -> tuple[int, int]:
    """Remove all files; how many they were, and their bytes."""
    where = folder()
    removed = []
    if where is not None:
        with _harmless(where), _opened(where) as root:
            removed = [file.bytes for file in _all_files(root) if _remove(root, file)]
            os.unlink(_SIZES, dir_fd=root)
    return len(removed), sum(removed)


def size() -> tuple[int, int]:
    """Return how many files there are, and their bytes."""
    where = folder()
    found = []
    if where is not None:
        with _harmless(where), _opened(where) as root:
            found = [file.bytes for file in _all_files(root)]
    return len(found), sum(found)


_SUFFIX = ".kept"
_NAME = re.compile(r"[0-9a-f]{64}\.(kept|[0-9a-f]{16})")
"""Names of files, and of those that are being written."""

_SHARDS = 256
_SIZES = "tvm-conv-ext.sizes"
_SAMPLE = 64
"""Number of files of which the least recently used ones are removed."""

_SKEW = 60.0
"""Seconds by which the dates of files that are written at the same time may differ."""


class _File(NamedTuple):
    used: float
    bytes: int
    shard: int
    name: str


class _UnsafeError(OSError):
    """A folder whose files others can replace."""


@contextmanager
def _harmless(where: Path) -> Iterator[None]:
    """Ignore what the file system refuses, and warn of a folder that is not safe."""
    try:
        yield
    except _UnsafeError as error:
        warn_once(f"the cache of compiled functions in {where} is not used: {error}")
    except OSError:
        pass


@contextmanager
def _opened(path: Path | str, parent: int | None = None) -> Iterator[int]:
    """Open a folder of this user; inside another folder, it must not be a link.

    Raises
    ------
    OSError
        There is none, or others can write to it.
    """
    it, link = ("it", 0) if parent is None else (f"its folder {path}", os.O_NOFOLLOW)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | link, dir_fd=parent)
    try:
        about = os.fstat(handle)
        if about.st_uid != os.geteuid():
            raise _UnsafeError(f"{it} belongs to another user")
        if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _UnsafeError(f"others may write to {it}: chmod go-w")
        yield handle
    finally:
        os.close(handle)


def _read_file(name: str, shard: int) -> bytes:
    """Return the bytes of a regular file of this user, and note that it was used.

    Nothing else is opened for long: a named pipe would wait for a writer, a link may lead to a
    device.

    Raises
    ------
    OSError
        For anything else, and for a file that is larger than all may be together.
    """
    handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=shard)
    try:
        about = os.fstat(handle)
        is_ours = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid()
        if not is_ours or about.st_size > limit_bytes():
            raise OSError(f"{name}: not a file of the cache")
        with open(handle, "rb", closefd=False) as file:
            found = file.read(about.st_size)
        with suppress(OSError):
            os.utime(handle)  # the least recently used file is removed first
        return found
    finally:
        os.close(handle)


def _write_file(name: str, shard: int, content: bytes) -> float:
    """Write a file under another name first; return its date."""
    temporary = f"{Path(name).stem}.{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with open(os.open(temporary, flags, 0o600, dir_fd=shard), "wb") as file:
            file.write(content)
        date = os.stat(temporary, dir_fd=shard).st_mtime
        os.replace(temporary, name, src_dir_fd=shard, dst_dir_fd=shard)
    except OSError:
        os.unlink(temporary, dir_fd=shard)
        raise
    return date


def _header(name: str, content: bytes) -> bytes:
    """Return what stands in front of `content` in the file of `name`; its length is fixed."""
    start = _MAGIC + name.encode() + b"\n"
    return start + hashlib.sha256(start + content).digest()


@cache
def source(folder: Path) -> bytes:
    """Return a text that differs between versions of the modules in a folder, released or not."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return digest.digest()


def _files(root: int, number: int) -> list[_File]:
    """Return the files of a shard, what writers left behind included."""
    found: list[_File] = []
    with suppress(OSError), _opened(f"{number:02x}", root) as shard:
        for name in os.listdir(shard):
            if _NAME.fullmatch(name) and int(name[:2], 16) == number:
                with suppress(OSError):
                    about = os.stat(name, dir_fd=shard, follow_symlinks=False)
                    if not stat.S_ISDIR(about.st_mode):
                        found.append(_File(about.st_mtime, about.st_size, number, name))
    return found


def _all_files(root: int) -> list[_File]:
    return [file for number in range(_SHARDS) for file in _files(root, number)]


def _remove(root: int, file: _File) -> bool:
    with suppress(OSError), _opened(f"{file.shard:02x}", root) as shard:
        os.unlink(file.name, dir_fd=shard)
        return True
    return False


class _Sizes:
    """The bytes in each shard when it was last listed, in a file that all processes share.

    No lock is needed, because each number is measured anew at each write to its shard.

    Parameters
    ----------
    handle : int
        The file: a number for each shard, one more than its bytes, or 0 where they are unknown.
    limit : int
        A larger number is not believed.
    """

    def __init__(self, handle: int, limit: int) -> None:
        self._handle = handle
        content = os.pread(handle, 8 * _SHARDS, 0).ljust(8 * _SHARDS, b"\0")
        numbers = enumerate(struct.unpack(f"<{_SHARDS}Q", content))
        self._bytes: dict[int, int] = {i: n - 1 for i, n in numbers if 0 < n <= limit}

    def set(self, shard: int, bytes_: int) -> None:
        """Store the bytes in a shard."""
        self._bytes[shard] = bytes_
        os.pwrite(self._handle, struct.pack("<Q", bytes_ + 1), 8 * shard)

    def subtract(self, file: _File) -> None:
        """Store that a file is gone."""
        self.set(file.shard, max(self._bytes[file.shard] - file.bytes, 0))

    def total(self) -> float:
        """Return the bytes in all shards; those that are unknown are like the others."""
        return sum(self._bytes.values()) * _SHARDS / len(self._bytes)


def _shrink(root: int, first: int, now: float) -> None:
    """Remove the least recently used of a few files if all together are too large.

    The work does not grow with the number of shards that are full: one shard is listed, or, if
    there is too much, as many as contain some files.  A file that is dated after `now` was used
    before the clock was set back.
    """
    limit = limit_bytes()
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(_SIZES, flags, 0o600, dir_fd=root), "r+b") as file:
        sizes = _Sizes(file.fileno(), limit)
        files: list[_File] = []
        for number in range(first, first + _SHARDS):
            listed = _files(root, number % _SHARDS)
            sizes.set(number % _SHARDS, sum(one.bytes for one in listed))
            files += listed
            if sizes.total() <= limit:
                return
            if len(files) >= _SAMPLE:
                break
        files.sort(key=lambda one: one.used if one.used <= now + _SKEW else 0)
        for one in files[:-1]:
            if sizes.total() <= limit:
                return
            if _remove(root, one):
                sizes.subtract(one)
