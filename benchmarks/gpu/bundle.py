# SPDX-License-Identifier: Apache-2.0
"""Kernels that are compiled already: machine code and launches, in one file.

Who times them needs neither TVM nor a compiler, and loses no time of a GPU to them.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cuda_emulator.host import Address, Launch, Memory, Plan
from topi_ext.cuda.machine import GpuMachine

from .requests import Request

NOTHING = Plan((), ())


@dataclass(frozen=True)
class Prepared:
    """A compiled request.

    Attributes
    ----------
    key : str
        Of the request.
    plan, error : str
        What was built, or why nothing was.
    binary : bytes
        Machine code of all kernels.
    call : Plan
        What a call launches, with the memory that it takes.
    packed : int
        Elements of packed weights, where the kernel is given such.
    source : str
        CUDA of all kernels: for another compiler, or other flags, on the machine with the GPU.
    """

    key: str
    plan: str = ""
    error: str = ""
    binary: bytes = b""
    call: Plan = NOTHING
    packed: int = 0
    source: str = ""


def prepare(request: Request, arch: str) -> Prepared:
    """Compile one; what fails says so in the result."""
    from . import building, toolchain  # TVM is needed here alone

    try:
        made = building.build(request, arch)
        with tempfile.TemporaryDirectory() as folder:
            binary, _ = toolchain.compile_source(made.source, arch, Path(folder))
            code = binary.read_bytes()
    except toolchain.MissingError:
        raise
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        return Prepared(request.key, error=f"{type(error).__name__}: {lines[-1].strip()[:200]}")
    return Prepared(request.key, made.plan, "", code, made.call, made.packed, made.source)


def prepare_all(requests: Iterable[Request], arch: str, jobs: int) -> Iterator[Prepared]:
    """Compile many, in order, by `jobs` processes."""
    if jobs == 1:
        yield from (prepare(request, arch) for request in requests)
        return
    # Not by a fork: this process may have threads, and a GPU.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(prepare, request, arch) for request in requests]
        try:
            for one in waiting:
                yield one.result()
        finally:
            for one in waiting:
                one.cancel()


def machine_of(arch: str) -> GpuMachine:
    """Return the machine that plans are chosen for.

    Raises
    ------
    ValueError
        For a name that is none.
    """
    found = GpuMachine.of_arch(arch)
    if found is None:
        raise ValueError(f"--arch {arch} must be one such as sm_90")
    return found


class Bundle:
    """A file of prepared requests: it is written once, and read by key."""

    def __init__(self, path: Path) -> None:
        """Open one that exists.

        Raises
        ------
        ValueError
            In one line: there is none, or it is no bundle.
        """
        try:
            self._file = zipfile.ZipFile(path)
            self.header: dict[str, Any] = json.loads(self._file.read("header.json"))
            self._index: dict[str, dict[str, Any]] = json.loads(self._file.read("index.json"))
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(f"--bundle {path}: {error}") from error

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, key: str) -> bool:
        return key in self._index

    def get(self, key: str) -> Prepared | None:
        """What is prepared for a request; None where nothing is."""
        found = self._index.get(key)
        if found is None:
            return None
        binary = b"" if found["error"] else self._file.read(f"{found['number']}.cubin")
        call = _call(*found["call"])
        return Prepared(key, found["plan"], found["error"], binary, call, found["packed"])


class Parts:
    """A folder of prepared requests, a few files each, which another call goes on with.

    Parameters
    ----------
    folder : Path
    header : dict
        Of the bundle.
    """

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        """Make the folder, or open one of the same architecture and commit.

        Raises
        ------
        ValueError
            In one line, for another one.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, about = folder, folder / "header.json"
        known = json.loads(about.read_text()) if about.exists() else header
        for name in ("arch", "commit"):
            if known[name] != header[name]:
                raise ValueError(
                    f"--prepare: {folder} has kernels of {name} {known[name]}, not {header[name]}: "
                    "remove it"
                )
        about.write_text(json.dumps(header))

    def _file(self, key: str, suffix: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.{suffix}"

    def __contains__(self, key: str) -> bool:
        return self._file(key, "request").exists()

    def add(self, one: Prepared) -> None:
        """Write a request; its list of launches last, so that a file of it means all of it."""
        self._file(one.key, "cubin").write_bytes(one.binary)
        self._file(one.key, "cu").write_text(one.source)
        listed = asdict(replace(one, binary=b"", source=""))
        del listed["binary"], listed["source"]
        self._file(one.key, "request").write_text(json.dumps(listed))

    def __iter__(self) -> Iterator[Prepared]:
        for path in sorted(self._folder.glob("*.request")):
            found = json.loads(path.read_text())
            binary, source = path.with_suffix(".cubin"), path.with_suffix(".cu")
            found["call"] = _call(*found["call"])
            yield Prepared(**found, binary=binary.read_bytes(), source=source.read_text())


def write(path: Path, header: dict[str, Any], prepared: Iterable[Prepared]) -> int:
    """Write a bundle; returns of how many."""
    index: dict[str, Any] = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for number, one in enumerate(prepared):
            listed = asdict(replace(one, binary=b"", source=""))
            key = listed.pop("key")
            del listed["binary"], listed["source"]
            index[key] = {**listed, "number": number}
            if not one.error:
                file.writestr(f"{number}.cubin", one.binary)
                file.writestr(f"{number}.cu", one.source)
        file.writestr("header.json", json.dumps(header))
        file.writestr("index.json", json.dumps(index))
    return len(index)


def _call(memory: list[Any], launches: list[Any]) -> Plan:
    """From what JSON makes of tuples."""
    return Plan(
        tuple(Memory(*one) for one in memory),
        tuple(
            Launch(
                kernel,
                tuple(grid),
                tuple(block),
                shared,
                tuple(Address(*one) if isinstance(one, list) else one for one in arguments),
                tuple(types),
            )
            for kernel, grid, block, shared, arguments, types in launches
        ),
    )
