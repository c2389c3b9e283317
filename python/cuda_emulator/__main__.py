# SPDX-License-Identifier: Apache-2.0
"""``python -m cuda_emulator FILE``: run the functions of a module on the CPU, in several orders."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.script import from_source

from . import Fault, Run, build, compiler
from .host import extent

RIGHT, FAULTY, USAGE = 0, 1, 2


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m cuda_emulator", description=__doc__)
    parser.add_argument("file", type=Path, help="TVMScript (.py), or a module saved as .json")
    parser.add_argument("--function", help="only this one; else all")
    parser.add_argument("--target", default="sm_90", help="a CUDA target or an architecture")
    parser.add_argument("--mode", default="fibers", choices=[*compiler.MODES, "all"])
    parser.add_argument("--orders", type=int, default=3, help="how many orders of threads")
    parser.add_argument("--seed", type=int, default=0, help="of inputs that are not given")
    parser.add_argument("--inputs", type=Path, help=".npz: arrays by the names of arguments")
    parser.add_argument("--expect", type=Path, help=".npz: results by the names of arguments")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="relative to the largest")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args(given)


def _module(path: Path) -> Any:
    if path.suffix == ".json":
        return tvm.ir.load_json(path.read_text())
    if path.suffix != ".py":
        raise ValueError(f"{path}: neither .py nor .json")
    text = path.read_text()
    if "from tvm" in text or "import tvm" in text:
        # TVMScript reads the source of a function, so the file has to be one that Python loaded.
        found = runpy.run_path(str(path))
        modules = [v for v in found.values() if isinstance(v, tvm.IRModule)]
        functions = {n: f for n, f in found.items() if isinstance(f, tirx.PrimFunc)}
        if len(modules) > 1 or not (modules or functions):
            raise ValueError(f"{path}: holds {len(modules)} modules, one is run")
        if modules:
            return modules[0]
        named = {n: f.with_attr("global_symbol", n) for n, f in functions.items()}
        return tvm.IRModule(named)
    return from_source(text)


def _sizes(given: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not value.lstrip("-").isdigit():
            raise ValueError(f"--size {item}: not NAME=VALUE")
        sizes[name] = int(value)
    return sizes


def _dtype(name: str) -> Any:
    # NumPy has no bfloat16: its bits.
    return np.dtype(np.uint16 if name == "bfloat16" else name)


def _random(shape: tuple[int, ...], dtype: str, random: np.random.Generator) -> np.ndarray:
    if dtype == "bfloat16":
        bits = random.standard_normal(shape).astype(np.float32).view(np.uint32)
        return (bits >> 16).astype(np.uint16)
    if dtype.startswith("float"):
        return random.standard_normal(shape).astype(dtype)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    low = 0 if dtype.startswith("uint") else -4
    return random.integers(low, 5, shape).astype(dtype)


def _inputs(
    run: Run, name: str, sizes: dict[str, int], given: dict[str, Any], seed: int
) -> tuple[list[str], list[Any]]:
    """Names and values of the arguments: what is given, else random numbers."""
    random = np.random.default_rng(seed)
    names, values = [], []
    for parameter, buffer in zip(run.declared(name), run.parameters(name)):
        called = str(parameter.name if buffer is None else buffer.name)
        names.append(called)
        if called in given:
            values.append(given[called])
        elif buffer is None:
            if called not in sizes:
                raise ValueError(f"{name}: --size {called}=... is missing")
            values.append(sizes[called])
        else:
            shape = tuple(extent(dimension, sizes, name) for dimension in buffer.shape)
            values.append(_random(shape, str(buffer.dtype), random))
    return names, values


def _wide(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes()


def _compare(name: str, got: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    for called, wanted in expected.items():
        if called not in got:
            continue
        have, want = _wide(got[called]), _wide(wanted)
        scale = max(float(np.abs(want).max(initial=0)), 1e-30)
        worst = float(np.abs(have - want).max(initial=0)) / scale if have.shape == want.shape else 9
        if not worst <= tolerance:
            raise Fault("wrong", f"{name}: {called} differs from what is expected by {worst:.3g}")


def _run_function(run: Run, name: str, given: argparse.Namespace, known: dict[str, Any]) -> str:
    """Run one function in all orders; what is to be said of it."""
    names, values = _inputs(run, name, known["sizes"], known["inputs"], given.seed)
    first: list[Any] = []
    for order in range(given.orders):
        arrays = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
        run(*arrays, order=order, name=name)
        if order == 0:
            first = arrays
            results = {n: a for n, a in zip(names, arrays) if isinstance(a, np.ndarray)}
            _compare(name, results, known["expect"], given.tolerance)
        for called, a, b in zip(names, first, arrays):
            if isinstance(a, np.ndarray) and not _same(a, b):
                raise Fault("race", f"{name}: {called} differs between orders 0 and {order}")
    return f"{name}: {given.orders} orders agree ({run.mode}, seed {given.seed})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 right, 1 a fault, 2 usage."""
    given = _arguments(arguments)
    try:
        known = {
            "sizes": _sizes(given.size),
            "inputs": dict(np.load(given.inputs)) if given.inputs else {},
            "expect": dict(np.load(given.expect)) if given.expect else {},
        }
        module = _module(given.file)
        modes = list(compiler.MODES) if given.mode == "all" else [given.mode]
        runs = [build(module, given.target, mode=mode) for mode in modes]
        names = [given.function] if given.function else runs[0].functions
        if given.function and given.function not in runs[0].functions:
            raise ValueError(
                f"--function {given.function} is none of {', '.join(runs[0].functions)}"
            )
    except (ValueError, TypeError, KeyError, SyntaxError, OSError, RuntimeError) as error:
        return _refused(error)
    status = RIGHT
    for run in runs:
        for name in names:
            try:
                print(_run_function(run, name, given, known), flush=True)
            except Fault as fault:
                print(f"{name}: {fault} ({run.mode}, seed {given.seed})", flush=True)
                status = FAULTY
            except (ValueError, TypeError) as error:
                return _refused(error)
    return status


def _refused(error: Exception) -> int:
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    print(f"cuda_emulator: {first}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
