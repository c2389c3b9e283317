# SPDX-License-Identifier: Apache-2.0
"""Files for later processes: what is read is what was written, and they never become many."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from topi_ext.code_cache import disk as disk_cache

CONTENT = bytes(range(256)) * 400  # 100 KiB


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVM_CONV_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def only(folder: Path) -> Path:
    (path,) = folder.glob("??/*")
    return path


def test_what_was_written_is_read_and_private(folder: Path) -> None:
    name = disk_cache.key("a", "b")
    assert disk_cache.read(name) is None
    disk_cache.write(name, CONTENT)
    assert disk_cache.read(name) == CONTENT
    for private in (folder, only(folder).parent, only(folder)):
        assert stat.S_IMODE(private.stat().st_mode) & 0o077 == 0


def test_names_differ_where_parts_do() -> None:
    parts = [(), ("",), ("ab",), ("a", "b"), ("", "ab"), ("a1 b",), ("\udc80",)]
    assert len({disk_cache.key(*one) for one in parts}) == len(parts)


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: b"",
        lambda found: found[:-1],
        lambda found: found[:20],
        lambda found: found + b" ",
        lambda found: found[:5000] + bytes([found[5000] ^ 4]) + found[5001:],
        lambda found: found[: len(found) - len(CONTENT)],
        lambda found: bytes(len(found)),
        lambda found: found[:-1] + b"!",
        lambda found: b"x" + found[1:],
        lambda found: b"another program's",
    ],
)
def test_what_is_damaged_is_ignored_and_written_again(
    damage: Callable[[bytes], bytes], folder: Path
) -> None:
    name = disk_cache.key("one")
    disk_cache.write(name, CONTENT)
    only(folder).write_bytes(damage(only(folder).read_bytes()))
    assert disk_cache.read(name) is None
    disk_cache.write(name, CONTENT)
    assert disk_cache.read(name) == CONTENT


@pytest.mark.parametrize("how", ["swapped", "content", "older format"])
def test_a_file_of_another_key_is_ignored(how: str, folder: Path) -> None:
    """Each file was written whole; the cache of older versions did not say for which key."""
    names = [disk_cache.key(one) for one in "ab"]
    for name in names:
        disk_cache.write(name, name.encode() * 1000)
    mine, other = (next(folder.glob(f"??/{name}*")) for name in names)
    found = other.read_bytes()
    if how == "content":
        head = len(found) - len(names[1].encode() * 1000)
        found = mine.read_bytes()[:head] + found[head:]
    if how == "older format":
        found = found.replace(b"tvm-conv-ext 2", b"tvm-conv-ext 1", 1)
    mine.write_bytes(found)
    assert disk_cache.read(names[0]) is None
    assert disk_cache.read(names[1]) == names[1].encode() * 1000


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        before = os.getcwd()
        os.chdir(path.parent)  # the path of a socket has at most 107 bytes
        try:
            server.bind(path.name)
        finally:
            os.chdir(before)


def _linked_to_another(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _sparse(path: Path) -> None:
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        _socket,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("nothing"),
        _linked_to_another,
        _sparse,
    ],
    ids=["pipe", "folder", "socket", "device", "loop", "dangling", "linked", "sparse"],
)
def test_what_is_no_file_is_ignored_at_once(make: Callable[[Path], None], folder: Path) -> None:
    """Also where it should be written: only a folder is left as it is."""
    name = disk_cache.key("one")
    disk_cache.write(name, CONTENT)
    path = only(folder)
    if make not in (_linked_to_another, _sparse):
        path.unlink()
    make(path)

    def hangs(*_: object) -> NoReturn:
        raise AssertionError("reading takes longer than ten seconds")

    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(10)
    handles = len(os.listdir("/proc/self/fd"))
    try:
        assert disk_cache.read(name) is None
    finally:
        signal.alarm(0)
    assert len(os.listdir("/proc/self/fd")) == handles
    disk_cache.size()
    disk_cache.write(name, CONTENT)
    assert disk_cache.read(name) == (None if make is os.mkdir else CONTENT)
    assert disk_cache.clear()[0] == (0 if make is os.mkdir else 1)


@pytest.mark.parametrize("seconds", [-(10**9), 10**9])
def test_dates_do_not_matter(seconds: int, folder: Path) -> None:
    name = disk_cache.key("one")
    disk_cache.write(name, CONTENT)
    moment = time.time() + seconds
    os.utime(only(folder), (moment, moment))
    assert disk_cache.read(name) == CONTENT


def test_files_of_another_user_are_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = disk_cache.key("one")
    disk_cache.write(name, CONTENT)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert disk_cache.read(name) is None


def _write_and_read(worker: int, rounds: int) -> bool:
    names = [disk_cache.key(str(i)) for i in range(8)]
    right = True
    for i in range(rounds):
        name = names[(worker * 3 + i) % 8]
        found = disk_cache.read(name)
        right = right and found in (None, CONTENT)
        disk_cache.write(name, CONTENT)
    return right


def test_two_processes_write_the_same(folder: Path) -> None:
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        assert all(pool.starmap(_write_and_read, [(0, 200), (1, 200)]))
    assert disk_cache.size() == (8, sum(path.stat().st_size for path in folder.glob("??/*")))


def test_the_oldest_go_when_there_is_too_much(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_CONV_CACHE_MB", "1")
    names = [disk_cache.key(str(i)) for i in range(40)]
    for i, name in enumerate(names):
        disk_cache.write(name, CONTENT)
        (path,) = folder.glob(f"??/{name}*")
        os.utime(path, (i, i))
        disk_cache.read(names[0])  # used, and so the newest
        assert disk_cache.size()[1] <= 1.2 * 2**20
    kept = [i for i, name in enumerate(names) if disk_cache.read(name)]
    assert 5 <= len(kept) <= 11 and kept[0] == 0 and kept[-1] == 39


def test_new_files_stay_where_the_clock_was_set_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_CONV_CACHE_MB", "1")
    for i in range(8):
        disk_cache.write(disk_cache.key(f"before {i}"), CONTENT)
    tomorrow = time.time() + 86400
    for path in folder.glob("??/*"):
        os.utime(path, (tomorrow, tomorrow))
    names = [disk_cache.key(str(i)) for i in range(8)]
    for name in names:
        disk_cache.write(name, CONTENT)
    assert [disk_cache.read(name) for name in names] == [CONTENT] * 8


class _Calls:
    """Calls of the file system that list a folder or ask for a file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("listdir", "scandir", "stat", "lstat", "unlink"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            self.count += 1
            return function(*arguments, **options)

        return call


@pytest.mark.parametrize("limit_mb", [1, 1000])
def test_writing_does_not_look_at_all_files(
    limit_mb: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shard of 256 is listed, by the first write and by those that remove."""
    monkeypatch.setenv("TVM_CONV_CACHE_MB", str(limit_mb))
    for shard in range(256):
        (folder / f"{shard:02x}").mkdir(mode=0o700, parents=True)
        for number in range(80):
            (folder / f"{shard:02x}" / f"{shard:02x}{number:062x}.kept").write_bytes(bytes(100))
    calls = _Calls(monkeypatch)
    for i in range(20):
        disk_cache.write(disk_cache.key(str(i)), b"content")
    assert calls.count < 20 * 300
    assert all(disk_cache.read(disk_cache.key(str(i))) for i in range(20))


def test_the_size_is_bounded_by_many_writers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where earlier ones kept no account, and the account is damaged."""
    monkeypatch.setenv("TVM_CONV_CACHE_MB", "1")
    for i in range(600):
        if i == 300:
            (folder / "tvm-conv-ext.sizes").write_bytes(b"\xff" * 999)
        disk_cache.write(disk_cache.key(str(i)), bytes(4000))
    count, bytes_ = disk_cache.size()
    assert 0.8 * 2**20 < bytes_ <= 1.05 * 2**20 and count > 200


def _foreign(folder: Path) -> list[Path]:
    """Files of other programs, beside and in folders like those of the cache."""
    name = disk_cache.key("one")
    files = [
        folder / "ab" / "writing-notes.txt",
        folder / "ab" / "writing-12345678",
        folder / "ab" / "photo.kept",
        folder / "ab" / f"{name}.txt",
        folder / "ab" / f"{'cd' + name[2:]}.kept",
        folder / "zz" / f"{name}.kept",
        folder / f"{name}.kept",
        folder.parent / "elsewhere" / f"{'cd' + name[2:]}.kept",
        folder.parent / "elsewhere" / "writing-12345678",
    ]
    for file in files:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_bytes(bytes(10**6))
    (folder / "cd").symlink_to(folder.parent / "elsewhere")
    return files


def test_files_of_other_programs_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_CONV_CACHE_MB", "1")
    files = _foreign(folder)
    for i in range(30):
        disk_cache.write(disk_cache.key(str(i)), CONTENT)
    assert disk_cache.size()[0] == 10
    assert disk_cache.clear()[0] == 10
    assert all(file.stat().st_size == 10**6 for file in files)


def test_nothing_is_written_through_a_link(folder: Path) -> None:
    name = disk_cache.key("one")
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    folder.mkdir(mode=0o700)
    (folder / name[:2]).symlink_to(elsewhere)
    disk_cache.write(name, CONTENT)
    assert list(elsewhere.iterdir()) == [] and disk_cache.read(name) is None


@pytest.mark.parametrize("level", ["folder", "shard"])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, None])
def test_a_folder_that_others_may_write_is_not_used(
    mode: int | None,
    level: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    """None: it belongs to another user.  There is one warning, and `fault` says why."""
    name = disk_cache.key("one")
    disk_cache.write(name, CONTENT)
    unsafe = folder if level == "folder" else only(folder).parent
    if mode is None:
        about, user = os.fstat, os.geteuid()
        inode = unsafe.stat().st_ino

        def of_another(handle: int) -> Any:
            found = about(handle)
            if found.st_ino != inode:
                return found
            return SimpleNamespace(st_mode=found.st_mode, st_uid=user + 1)

        monkeypatch.setattr(os, "fstat", of_another)
    else:
        unsafe.chmod(mode)
    before = [path.stat().st_mtime_ns for path in folder.glob("??/*")]
    for _ in range(3):
        assert disk_cache.read(name) is None
        disk_cache.write(name, CONTENT)
    assert [path.stat().st_mtime_ns for path in folder.glob("??/*")] == before
    (warning,) = recwarn
    it = "it" if level == "folder" else f"its folder {unsafe.name}"
    reason = f"{it} belongs to another user" if mode is None else f"others may write to {it}: chmod"
    assert f"in {folder} is not used: {reason}" in str(warning.message)
    if level == "folder":
        assert reason in (disk_cache.fault() or "")


@pytest.mark.parametrize("given", ["9" * 5000, "-1", "1e3", "\u0663"])
def test_a_size_that_is_none_gives_one_warning(
    given: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_CONV_CACHE_MB", given)
    with pytest.warns(UserWarning, match="TVM_CONV_CACHE_MB=.* must be a number of MiB") as said:
        disk_cache.write(disk_cache.key("one"), CONTENT)
    assert disk_cache.read(disk_cache.key("one")) == CONTENT
    assert len(said) == 1 and len(str(said[0].message)) < 120


def test_a_path_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_CONV_CACHE", "/" + "a" * 5000)
    disk_cache.write(disk_cache.key("one"), CONTENT)
    assert disk_cache.read(disk_cache.key("one")) is None
    assert disk_cache.size() == disk_cache.clear() == (0, 0)
    assert disk_cache.fault() == "File name too long"


def test_clear_removes_what_a_writer_left_behind(folder: Path) -> None:
    disk_cache.write(disk_cache.key("one"), CONTENT)
    only(folder).with_suffix(f".{0:016x}").write_bytes(b"half")
    assert disk_cache.clear()[0] == 2
    assert disk_cache.size() == (0, 0)


@pytest.mark.parametrize("value", ["0", "off", "No", "FALSE"])
def test_switched_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_CONV_CACHE", value)
    assert disk_cache.folder() is None
    name = disk_cache.key("one")
    disk_cache.write(name, CONTENT)
    assert disk_cache.read(name) is None
    assert disk_cache.size() == disk_cache.clear() == (0, 0)


@pytest.mark.parametrize("value", ["", "1", "on"])
def test_where_the_system_keeps_caches(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_CONV_CACHE", value)
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert disk_cache.folder() == Path("/elsewhere/tvm-conv-ext/compiled")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert disk_cache.folder() == tmp_path / ".cache/tvm-conv-ext/compiled"


def test_a_folder_that_cannot_be_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("here")
    monkeypatch.setenv("TVM_CONV_CACHE", str(tmp_path / "file" / "kept"))
    name = disk_cache.key("one")
    disk_cache.write(name, CONTENT)
    assert disk_cache.read(name) is None
    assert disk_cache.size() == (0, 0)


def test_a_full_disk_is_no_error(folder: Path) -> None:
    """No file of this process may be larger: writing fails in its middle, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    name = disk_cache.key("one")
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(CONTENT) // 2, before[1]))
    try:
        disk_cache.write(name, CONTENT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert disk_cache.read(name) is None
    assert disk_cache.size() == (0, 0)


def test_a_read_only_folder_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that change something fail, since permissions do not bind a superuser."""
    names = [disk_cache.key(one) for one in "ab"]
    disk_cache.write(names[0], CONTENT)

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, "read-only")

    opened = os.open
    for change in ("mkdir", "utime", "unlink", "replace"):
        monkeypatch.setattr(os, change, refuse)
    monkeypatch.setattr(
        os, "open", lambda *a, **k: (refuse if a[1] & os.O_CREAT else opened)(*a, **k)
    )
    for change in ("mkdir", "unlink", "replace"):  # Python 3.10's do not ask os
        monkeypatch.setattr(Path, change, refuse)
    disk_cache.write(names[1], CONTENT)
    assert disk_cache.read(names[0]) == CONTENT
    assert disk_cache.read(names[1]) is None
    assert disk_cache.clear() == (0, 0)


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(*_: object) -> NoReturn:
        raise RuntimeError("no home")

    monkeypatch.delenv("TVM_CONV_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert disk_cache.folder() is None


def _write_for_ever(folder: str) -> None:
    os.environ["TVM_CONV_CACHE"] = folder
    for i in range(10**9):
        disk_cache.write(disk_cache.key(str(i % 8)), CONTENT)


def test_a_writer_that_is_killed_leaves_whole_files(folder: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    for _ in range(5):
        disk_cache.clear()
        writer = context.Process(target=_write_for_ever, args=[str(folder)])
        writer.start()
        while writer.is_alive() and disk_cache.size()[0] < 8:
            time.sleep(0.001)
        writer.kill()
        writer.join()
        found = [disk_cache.read(disk_cache.key(str(i))) for i in range(8)]
        assert set(found) <= {None, CONTENT}
    disk_cache.clear()
    assert disk_cache.size() == (0, 0)
