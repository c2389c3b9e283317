# SPDX-License-Identifier: Apache-2.0
"""Files for later processes: what is read is what was written, and they never become many."""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from topi_ext import disk_cache

CONTENT = bytes(range(256)) * 400  # 100 KiB


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVM_CONV_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(disk_cache, "_unseen", {})
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


def test_files_of_another_user_are_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = disk_cache.key("one")
    disk_cache.write(name, CONTENT)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
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


def test_clear_removes_what_a_writer_left_behind(folder: Path) -> None:
    disk_cache.write(disk_cache.key("one"), CONTENT)
    (only(folder).parent / "writing-x").write_bytes(b"half")
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
