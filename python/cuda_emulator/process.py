# SPDX-License-Identifier: Apache-2.0
"""One run of a program: arrays go through a file, a fault comes back as one line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .faults import Fault
from .host import Address, Launch, Plan

__all__ = ["run"]

_UNIT = 4096
_ALIGNMENT = 16
"""Bytes of the widest access of a thread: an array keeps its address modulo these."""

_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:handle_segv=0:handle_sigbus=0"
    ":handle_sigill=0:handle_sigfpe=0:allow_user_segv_handler=1",
    "UBSAN_OPTIONS": "print_stacktrace=0",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:handle_segv=0:report_signal_unsafe=0",
}


def _scratch() -> str | None:
    """Memory, where there is some for files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _argument(value: Any) -> str:
    if isinstance(value, Address):
        return f"t {value.number} {value.offset}"
    if isinstance(value, float):
        return f"f {value.hex()}"
    whole = int(value)
    return f"i {whole - (1 << 64) if whole >= 1 << 63 else whole}"


def _launch(launch: Launch, numbers: dict[str, int]) -> str:
    head = (numbers[launch.kernel], *launch.grid, *launch.block, launch.dynamic_shared)
    values = [_argument(value) for value in launch.arguments]
    return " ".join((*map(str, head), str(len(values)), *values))


def _job(
    plan: Plan, kernels: Sequence[str], arrays: Sequence[Any], shared: int
) -> tuple[str, list[int]]:
    """The text of a job, and where in the file of data each memory lies; -1: not there."""
    offsets, shifts, end = [], [], 0
    for memory in plan.memory:
        if memory.argument is None:
            offsets.append(-1)
            shifts.append(0)
        else:
            offsets.append(end)
            shifts.append(arrays[memory.argument].ctypes.data % _ALIGNMENT)
            end += (memory.bytes + _UNIT - 1) // _UNIT * _UNIT
    numbers = {name: number for number, name in enumerate(kernels)}
    names = [re.sub(r"[^0-9A-Za-z_.]", "_", memory.name)[:90] or "_" for memory in plan.memory]
    lines = [str(shared), str(len(plan.memory))]
    lines += [
        f"{memory.bytes} {offset} {shift} {name}"
        for memory, offset, shift, name in zip(plan.memory, offsets, shifts, names)
    ]
    lines.append(str(len(plan.launches)))
    lines += [_launch(launch, numbers) for launch in plan.launches]
    return "\n".join(lines) + "\n", offsets


def run(
    program: Path,
    plan: Plan,
    kernels: Sequence[str],
    arrays: Sequence[Any],
    order: int,
    timeout: float,
    shared: int,
) -> None:
    """Run `plan` and write results into `arrays`; a block has at most `shared` bytes.

    Raises
    ------
    Fault
        The one that the program found first.
    """
    for launch in plan.launches:
        if min((*launch.grid, *launch.block)) <= 0:
            sizes = f"grid {launch.grid} and block {launch.block}"
            raise Fault("launch", f"{sizes} must be positive", launch.kernel)
    text, offsets = _job(plan, kernels, arrays, shared)
    with tempfile.TemporaryDirectory(prefix="cuda_emulator_run_", dir=_scratch()) as made:
        job, data = Path(made) / "job", Path(made) / "data"
        job.write_text(text)
        with data.open("wb") as file:
            for memory, offset in zip(plan.memory, offsets):
                if memory.argument is not None and memory.bytes:
                    file.seek(offset)
                    file.write(np.ascontiguousarray(arrays[memory.argument]).view(np.uint8).data)
        command = [str(program), str(job), str(data), str(order)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                check=False,
                timeout=timeout,
                env={**os.environ, **_ENVIRONMENT},
            )
        except subprocess.TimeoutExpired:
            names = ", ".join(dict.fromkeys(launch.kernel for launch in plan.launches))
            raise Fault("timeout", f"{names} took more than {timeout:g} seconds") from None
        said = done.stderr.decode(errors="replace")
        fault = _fault(program, said, done.returncode)
        if fault is not None:
            raise fault
        for memory, offset in zip(plan.memory, offsets):
            if memory.argument is not None and memory.bytes:
                array = arrays[memory.argument]
                read = np.fromfile(data, np.uint8, memory.bytes, offset=offset)
                array[...] = read.view(array.dtype).reshape(array.shape)


def _line(program: Path, site: int) -> str:
    """The line of the CUDA text that an address of the program belongs to, in words."""
    tool = shutil.which("addr2line")
    if not site or tool is None:
        return ""
    # A return address is behind the call.
    command = [tool, "-i", "-e", str(program), hex(site - 1)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"kernels\.cu:(\d+)", said)
    return f", in line {found[1]}" if found else ""


def _fault(program: Path, said: str, status: int) -> Fault | None:
    found = re.search(r"^FAULT\t([\w-]+)\t(.*?)\t(.*?)\t(.*?)\t(\w+)\t(.*)$", said, re.M)
    if found:
        kind, kernel, block, thread, site, message = found.groups()
        return Fault(kind, message + _line(program, int(site, 16)), kernel, block, thread)
    at = re.search(r"^AT\t(.*?)\t(.*?)\t(.*)$", said, re.M)
    place = at.groups() if at else ("", "", "")
    race = re.search(r"ThreadSanitizer: (data race|.*)", said)
    if race:
        return Fault("race", _race(said), *place)
    undefined = re.search(r"^(?:\S*?)(?::(\d+))?(?::\d+)?: runtime error: (.*)$", said, re.M)
    if undefined:
        line, text = undefined.groups()
        kind = "misaligned" if "misaligned address" in text else "undefined"
        kind = "out-of-bounds" if "out of bounds" in text else kind
        kind = "division" if "division by zero" in text else kind
        return Fault(kind, f"line {line}: {text}", *place)
    if status == 0:
        return None
    name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    last = said.strip().splitlines()[-1:]
    return Fault("crash", " ".join((name, *last)), *place)


def _race(said: str) -> str:
    """The two accesses of the first report, by their lines."""
    found = re.findall(
        r"^  ((?:Previous )?(?:atomic )?(?:write|read)) of size (\d+).*\n"
        r"\s+#0 (?:.*kernels\.cu:(\d+))?",
        said,
        re.M | re.I,
    )
    if not found:
        return said.strip().splitlines()[1][:200]
    return ", ".join(
        f"{what.lower()} of {size} bytes" + (f" in line {line}" if line else "")
        for what, size, line in found[:2]
    )
