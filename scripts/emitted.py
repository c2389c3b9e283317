# SPDX-License-Identifier: Apache-2.0
"""Write down every kernel that is emitted over case files, to see that a change of the code changes
none.

``python scripts/emitted.py BEFORE.json``, then, after the change, ``python scripts/emitted.py
AFTER.json --against BEFORE.json``.  One row per kernel: the values of its plan, without names, and
a structural hash of its function, in which names of variables do not count.  Nothing is run, so
targets may be other processors than this one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmark.arguments import count
from benchmark.cases import FACES, Case, read_cases

CASES = Path(__file__).parent / "cases"
TARGETS = {
    "znver4": ("x86_64-linux-gnu", "znver4"),
    "emeraldrapids": ("x86_64-linux-gnu", "emeraldrapids"),
    "x86-64-v3": ("x86_64-linux-gnu", "x86-64-v3"),
    "neoverse-n1": ("aarch64-linux-gnu", "neoverse-n1"),
}
CORES = 4


class Variant(NamedTuple):
    """What else is asked of one case: names are those of the columns of a row's key."""

    dtype: str = "float32"
    sizes: str = "static"
    weights: str = "plain"
    layout: str = "channels_first"
    epilogue: str = "none"

    def serves(self, face: str) -> bool:
        """Whether the face can be asked for this."""
        is_gradient = face == "conv_weight_grad"
        return not (is_gradient and (self.weights == "packed" or self.epilogue != "none"))


VARIANTS = [
    *map(
        Variant._make,
        product(
            ("float32", "bfloat16"),
            ("static", "symbolic"),
            ("plain", "packed"),
            ("channels_first",),
            ("none",),
        ),
    ),
    Variant(layout="channels_last"),
    Variant(epilogue="bias+residual+relu"),
    Variant(dtype="float16"),
]


def rows(file: str, target_name: str, case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """The key and the row of every variant of every face of a case."""
    import tvm

    triple, mcpu = TARGETS[target_name]
    target = tvm.target.Target(
        {"kind": "llvm", "mtriple": triple, "mcpu": mcpu, "num-cores": CORES}
    )
    for face, variant in product(FACES, VARIANTS):
        if variant.serves(face):
            key = "/".join((file, case.name, face, *variant, target_name))
            yield key, row(case, face, variant, target)


def row(case: Case, face: str, variant: Variant, target: Any) -> dict[str, Any]:
    """Plan, hash of the kernel, and of the function that packs its weights."""
    from tvm_ffi import structural_hash

    from topi_ext import backend, compat
    from topi_ext.layout import Layouts

    g = case.geometry_of(face)
    rank, n, sized = g.rank, case.n, g
    if variant.sizes == "symbolic":
        n = compat.size_var("n")
        sizes = [[compat.size_var(f"{a}{i}") for i in range(rank)] for a in "xy"]
        sized = replace(g, x_size=tuple(sizes[0]), y_size=tuple(sizes[1]))
    layouts = Layouts.canonical(rank)
    if variant.layout == "channels_last":
        letters = "DHW"[3 - rank :]
        layouts = Layouts(f"N{letters}C", layouts.w, f"N{letters}C")
    dtypes = (variant.dtype,) * 3
    request = face, sized, layouts, n, dtypes, target, _fused(variant, face, layouts)
    packing = None
    if variant.weights == "packed":
        packing, func = backend.prepacked(*request)
    else:
        func = backend.prim_func(*request)
    packed = packing and [structural_hash(packing.func), packing.elements, packing.dtype]
    return {
        "plan": repr(values(_plan(request, variant))),
        "hash": structural_hash(func),
        "packing": packed,
    }


def _fused(variant: Variant, face: str, layouts: Any) -> Any:
    from topi_ext.epilogue import UNFUSED, Fused, PostOp

    if variant.epilogue == "none":
        return UNFUSED
    order = layouts.x if face == "conv_transpose" else layouts.y
    return Fused((PostOp("add", order, "C"), PostOp("add", order, order), PostOp("relu")))


def _plan(request: Any, variant: Variant) -> Any:
    from topi_ext.backend import of_target
    from topi_ext.cpu.plan.choose import choose
    from topi_ext.problem import Problem

    face, g, layouts, n, dtypes, target, fused = request
    packed = variant.weights == "packed"
    problem = Problem(face, g.as_rank3(), layouts, n, dtypes, fused.epilogue, packed)
    return choose(problem, of_target(target).machine)


def values(plan: Any) -> Any:
    """The values of a plan, and of plans inside it, in the order of its fields."""
    if dataclasses.is_dataclass(plan):
        return [values(getattr(plan, field.name)) for field in dataclasses.fields(plan)]
    return plan


def _rows_of(job: tuple[str, str, Case]) -> list[tuple[str, dict[str, Any]]]:
    return list(rows(*job))


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One line per row that is not the same, or is in one of the two only."""
    lines = [f"{key}: only before" for key in before.keys() - after.keys()]
    lines += [f"{key}: only after" for key in after.keys() - before.keys()]
    for key in before.keys() & after.keys():
        changed = [part for part in before[key] if before[key][part] != after[key].get(part)]
        if changed:
            lines.append(f"{key}: {', '.join(changed)}")
    return sorted(lines)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--against", type=Path, help="JSON file of an earlier run")
    parser.add_argument(
        "--cases", type=Path, nargs="+", help="case files; both benchmarks if absent"
    )
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--jobs", type=count, default=2, help="processes")
    given = parser.parse_args()
    files = given.cases or [CASES / "bench.json", CASES / "bench_conv.json"]
    try:
        before = json.loads(given.against.read_text()) if given.against else None
        cases = [(file.stem, case) for file in files for case in read_cases(file)]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    jobs = [(file, target, case) for file, case in cases for target in given.targets]
    found: dict[str, Any] = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for number, made in enumerate(pool.map(_rows_of, jobs), 1):
            found.update(made)
            print(f"\r{number} of {len(jobs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    given.out.write_text(json.dumps(found, indent=0, sort_keys=True))
    if before is None:
        print(f"{len(found)} kernels")
        return 0
    lines = differences(before, found)
    print("\n".join([*lines, f"{len(found)} kernels, {len(lines)} are not the same"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
