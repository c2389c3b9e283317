# SPDX-License-Identifier: Apache-2.0
"""Run PyTorch's database of operators by ``torch.compile(backend="tvm_conv")``, compare with eager.

Each case is an operator, a dtype and a form, with a matrix product beside it, so that a part is
compiled.  Forms other than ``plain`` are for floats:

============= ===================================================================
plain         the samples as PyTorch has them, in six dtypes
strided       tensors with gaps between their elements
expanded      tensors with an axis of stride 0
channels last images whose channels are the innermost axis
dynamic       ``dynamic=True``
trained       float64, with the gradients of all floats
============= ===================================================================

Cases run in worker processes with a time limit each.  Results are appended to a file of JSON
lines; cases that it contains are not run again.  A case is ``compiled`` if nothing of it stays in
PyTorch, else ``partly``; ``incorrect``, ``error``, ``crash`` and ``timeout`` are faults, and make
the exit status 1; ``skipped`` says why there is nothing to compare.  ``--keep`` takes results over
into docs/measured/operator_database.json, of which ``make docs`` makes a page of the site.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from support.operators_page import FAULTS, MEASURED
from support.processes import TaskError, Workers

DTYPES = ("float32", "float16", "bfloat16", "int64", "uint8", "bool")
FORMS = ("strided", "expanded", "channels last", "dynamic", "trained")
SAMPLES = 4
"""Samples of a case."""

LIMIT_S = 120.0

_NOISE = 1e-13
"""Absolute error that is no fault: gradients that cancel."""

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
"""Maximum error relative to the largest number: sums of at most some hundred terms, and for half
precision four roundings, because PyTorch too rounds more than once."""


class Case(NamedTuple):
    """An operator of the database by its place in it, a dtype, and a form."""

    name: str
    place: int
    dtype: str
    form: str

    @property
    def key(self) -> str:
        """Return what the results call this case."""
        return f"{self.name} {self.dtype} {self.form}"


def database() -> list[Any]:
    """Return PyTorch's database of operators."""
    from torch.testing._internal.common_methods_invocations import op_db

    # That import forbids the whole process to set flags such as those of cuDNN.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    return list(op_db)


def cases() -> Iterator[Case]:
    """Yield all cases, those of one dtype and form after each other."""
    kinds = [(dtype, "plain") for dtype in DTYPES]
    kinds += [("float64" if form == "trained" else "float32", form) for form in FORMS]
    for dtype, form in kinds:
        for place, entry in enumerate(database()):
            if getattr(torch, dtype) in entry.dtypes:
                name = ".".join(filter(None, (entry.name, entry.variant_test_name)))
                yield Case(name, place, dtype, form)


class Sample:
    """One call of an operator, with the tensors among its arguments."""

    def __init__(self, entry: Any, sample: Any) -> None:
        self._operator = entry
        leaves, self._tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self._leaves = leaves
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.wants = [leaves[place].requires_grad for place in self._places]
        self.tensors = [leaves[place].detach() for place in self._places]

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors among the results for other tensors of the same shapes."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors):
            leaves[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self._tree)
        results = pytree.tree_leaves(self._operator(first, *args, **kwargs))
        return [result for result in results if isinstance(result, torch.Tensor)]


def samples_of(case: Case) -> list[Sample]:
    """Return samples: one without axes, one without elements, and others, drawn from the name."""
    entry, dtype = database()[case.place], getattr(torch, case.dtype)
    torch.manual_seed(0)
    trains = case.form == "trained"
    found = [Sample(entry, s) for s in entry.sample_inputs("cpu", dtype, requires_grad=trains)]
    found = [s for s in found if all(map(_is_plain, s.tensors))]
    first = [s.tensors[0] if s.tensors else torch.zeros(1) for s in found]
    bare = [(s for s, tensor in zip(found, first) if not tensor.dim())]
    bare.append(s for s, tensor in zip(found, first) if not tensor.numel())
    special = [next(some, None) for some in bare]
    others = [s for s, tensor in zip(found, first) if tensor.dim() and tensor.numel()]
    drawn = random.Random(case.key).sample(others, min(len(others), SAMPLES - 2))
    return [sample for sample in (*drawn, *special) if sample is not None]


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_complex()


def _in_form(tensor: torch.Tensor, form: str) -> torch.Tensor:
    """Return a tensor in another place of memory; of ``expanded`` with other values."""
    if form == "strided":
        return torch.stack([tensor, tensor], -1)[..., 0]
    if form == "expanded" and tensor.dim() and tensor.shape[0]:
        return tensor[:1].expand_as(tensor)
    if form == "channels last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.clone()


def run(case: Case) -> dict[str, Any]:
    """Run a case in this process, and return its result."""
    warnings.simplefilter("ignore")
    taken, wanted = [], []
    why = "no samples without complex or sparse tensors"
    for sample in samples_of(case):
        try:
            twice = [_evaluated([sample], case, None, seed)[0] for seed in (0, 1)]
        except Exception as error:
            why = f"PyTorch raises {type(error).__name__}: {error}"[:200]
            continue
        if not all(map(_is_plain, twice[0])):
            why = "results are complex or sparse"
            continue
        if any(not _close(one, other, 1e-3) for one, other in zip(*twice)):
            why = "random, or not initialized"
            continue
        taken.append(sample)
        wanted.append(twice[0])
    if not taken:
        return {"status": "skipped", "why": why}
    from relax_ext.torch import report

    torch._dynamo.reset()
    report(clear=True)
    try:
        found = _evaluated(taken, case, {"dynamic": True} if case.form == "dynamic" else {}, 0)
    except Exception as error:
        return {"status": "error", "why": f"{type(error).__name__}: {error}"[:500]}
    for number, (got, want) in enumerate(zip(found, wanted)):
        shapes = [[tuple(each.shape), each.dtype] for each in got]
        if shapes != [[tuple(each.shape), each.dtype] for each in want]:
            return {"status": "incorrect", "why": f"sample {number}: shapes {shapes}"}
        limit = TOLERANCE.get(case.dtype, TOLERANCE["float32"])
        if not all(_close(one, other, limit) for one, other in zip(got, want)):
            text = f"sample {number}: {got} {want}".replace("\n", " ")
            return {"status": "incorrect", "why": text[:500]}
    left = {name: why for graph in report().graphs for name, why in graph.in_pytorch.items()}
    parts = sum(len(graph.parts) for graph in report().graphs)
    status = "partly" if left or not parts else "compiled"
    return {"status": status, "in_pytorch": {name: why[:100] for name, why in left.items()}}


def _evaluated(
    samples: list[Sample], case: Case, options: dict[str, Any] | None, seed: int
) -> list[list[torch.Tensor]]:
    """Return results, and gradients if the case is trained; without `options` by eager PyTorch."""
    torch.manual_seed(seed)
    trains = case.form == "trained"
    groups = [[_in_form(tensor, case.form) for tensor in sample.tensors] for sample in samples]
    for sample, group in zip(samples, groups):
        for tensor, wants in zip(group, sample.wants):
            tensor.requires_grad_(trains and wants)
    # Graphs without a product, and small ones of float32, would stay in PyTorch.
    weight = torch.eye(2, dtype=torch.float64, requires_grad=trains)

    def function(weight: torch.Tensor, groups: list[list[torch.Tensor]]) -> Any:
        return weight @ weight, [sample(group) for sample, group in zip(samples, groups)]

    call: Callable[..., Any] = function
    if options is not None:
        call = torch.compile(function, backend="tvm_conv", **options)
    with torch.set_grad_enabled(trains):
        product, results = call(weight, groups)
    if trains:
        losses = [_weighted(r) for group in results for r in group if r.requires_grad]
        sum(losses, product.sum()).backward()
    return [
        [*(r.detach() for r in ours), *(t.grad for t in given if t.grad is not None)]
        for ours, given in zip(results, groups)
    ]


def _weighted(result: torch.Tensor) -> torch.Tensor:
    """Return a sum with weights: the plain sum of a norm has no gradient."""
    weights = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64)
    return (result * weights.reshape(result.shape)).sum()


def _close(got: torch.Tensor, want: torch.Tensor, limit: float) -> bool:
    """Return whether tensors are equal; floats to a limit relative to the largest number."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if not want.is_floating_point():
        return torch.equal(got, want)
    got, want = got.double(), want.double()
    finite = want[want.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(got, want, rtol=0, atol=limit * scale + _NOISE, equal_nan=True)


class Runner:
    """Runs cases in a process of :class:`support.processes.Workers`."""

    def __init__(self) -> None:
        import relax_ext.torch  # noqa: F401  (registers the backend)

        torch.set_num_threads(1)

    def run(self, _: str, *cases: Case) -> dict[str, Any]:
        """Return the result of a case."""
        return run(*cases)

    def is_broken(self) -> bool:
        """No fault but the end of the process outlives a case."""
        return False


def result_of(workers: Workers, case: Case) -> dict[str, Any]:
    """Return the result of a case, or how its process ended."""
    try:
        return workers.result("case", case)
    except TaskError as error:
        return {"status": error.status, "why": str(error)}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--results", type=Path, default=Path("out/operator_database.jsonl"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="part of the keys of cases that are run, again")
    parser.add_argument("--keep", action="store_true", help="only take results over into docs")
    given = parser.parse_args()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    rows = read(given.results)
    if given.keep:
        MEASURED.write_text(json.dumps(summary(rows), indent=0) + "\n")
        return 0
    todo = [c for c in cases() if (given.only in c.key if given.only else c.key not in rows)]
    print(f"{len(todo)} cases; {len(rows)} are in {given.results}", flush=True)
    local, lock = threading.local(), threading.Lock()

    def work(case: Case) -> None:
        local.workers = getattr(local, "workers", None) or Workers(Runner, LIMIT_S, most=10**9)
        row = {"case": case.key, "name": case.name, **result_of(local.workers, case)}
        with lock:
            rows[case.key] = row
            with given.results.open("a") as out:
                out.write(json.dumps(row) + "\n")
            if row["status"] in FAULTS:
                print(f"{case.key}: {row['status']}: {row['why'][:300]}", flush=True)
            elif len(rows) % 200 == 0:
                print(f"{len(rows)} done", flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(work, todo))
    counts = Counter(row["status"] for row in rows.values())
    print(", ".join(f"{count} {status}" for status, count in counts.most_common()))
    reasons = Counter(
        f"{name}: {why}" for row in rows.values() for name, why in row.get("in_pytorch", {}).items()
    )
    for reason, count in reasons.most_common(40):
        print(f"  {count} times in PyTorch: {reason}")
    return int(any(counts[fault] for fault in FAULTS))


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file of results by case, the last one of each."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["case"]: row for row in map(json.loads, lines)}


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of results: statuses of forms, and reasons, by operator."""
    kept: dict[str, Any] = {}
    for row in rows.values():
        form = row["case"].removeprefix(row["name"]).strip()
        entry = kept.setdefault(row["name"], {"statuses": {}, "in_pytorch": {}})
        entry["statuses"][form] = row["status"]
        entry["in_pytorch"] |= row.get("in_pytorch", {})
    return dict(sorted(kept.items()))


if __name__ == "__main__":
    sys.exit(main())
