# SPDX-License-Identifier: Apache-2.0
"""Files of compiled kernels: machine code and launches.

The machine with the GPU needs neither TVM nor a compiler, and spends no time on compilation.
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

from .requests import Request

NOTHING = Plan((), ())


@dataclass(frozen=True)
class Prepared:
    """A compiled request.

    Attributes
    ----------
    key : str
        Name of the kernels, :attr:`Request.code`.
    plan, error : str
        The plan that was built, or the reason why none was.
    binary : bytes
        Machine code of all kernels.
    call : Plan
        The launches of a call, and their memory.
    packed : int
        Number of elements of packed weights, if the kernel takes them.
    source : str
        CUDA source of all kernels, for another compiler or other flags on the machine with the GPU.
    """

    key: str
    plan: str = ""
    error: str = ""
    binary: bytes = b""
    call: Plan = NOTHING
    packed: int = 0
    source: str = ""


def prepare(request: Request, arch: str) -> Prepared:
    """Compile a request; a failure is reported in the result."""
    from . import building, toolchain  # only these need TVM

    try:
        made = building.build(request, arch)
        with tempfile.TemporaryDirectory() as folder:
            binary, _ = toolchain.compile_source(made.source, arch, Path(folder))
            code = binary.read_bytes()
    except toolchain.MissingError:
        raise
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        return Prepared(request.code, error=f"{type(error).__name__}: {lines[-1].strip()[:200]}")
    return Prepared(request.code, made.plan, "", code, made.call, made.packed, made.source)


def prepare_all(requests: Iterable[Request], arch: str, jobs: int) -> Iterator[Prepared]:
    """Compile requests in order, with `jobs` processes."""
    if jobs == 1:
        yield from (prepare(request, arch) for request in requests)
        return
    # The processes are not forked, because this one may have threads and a GPU.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(prepare, request, arch) for request in requests]
        try:
            for one in waiting:
                yield one.result()
        finally:
            for one in waiting:
                one.cancel()


class Bundle:
    """A file of prepared requests, which is written once and read by key."""

    def __init__(self, path: Path) -> None:
        """Open an existing bundle.

        Raises
        ------
        ValueError
            If the file does not exist or is not a bundle.
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
        """Return the prepared kernels of a request; None if there are none."""
        found = self._index.get(key)
        if found is None:
            return None
        binary = b"" if found["error"] else self._file.read(f"{found['number']}.cubin")
        call = _call(*found["call"])
        return Prepared(key, found["plan"], found["error"], binary, call, found["packed"])


class Parts:
    """A folder of prepared requests, a few files each, with which a later call continues.

    Parameters
    ----------
    folder : Path
    header : dict
        Header of the bundle.
    """

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        """Create the folder, or open one of the same architecture and commit.

        Raises
        ------
        ValueError
            If the folder is of another architecture or commit.
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
        """Write a request.  Its launches are written last, so their file implies the others."""
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
    """Write a bundle and return its number of requests."""
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
    """Return a plan from the lists in JSON."""
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
