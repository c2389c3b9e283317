# SPDX-License-Identifier: Apache-2.0
"""Run models of other packages through ``torch.compile(..., backend="tvm_conv")``, and compare.

``python scripts/compiled_models.py --json out/compiled.json`` computes results of the models of
``support/zoo`` in ``eval()``, and losses and gradients of those of ``support/trainable`` in
``train()``, in float64, by PyTorch and by ours.  Models need ``make env-models``.  ``--keep`` takes
such rows over into docs/measured/compiled_models.json, where rows of other models stay, and
``python scripts/figures.py`` writes docs/how-to/real-models.md.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from support.model_rows import keep, parser, run
from support.models_page import COMPILED, TRAINED

NEAR = 1e-6
"""Maximum error in float64, relative to the largest value; PyTorch and TVM compute some operators
in float32."""

IN_FLOAT32 = {"ZoeDepthForDepthEstimation": 1e-3}
"""Limits of models that amplify roundings of float32: this one subtracts numbers near 260 that it
computes in float32, and divides the difference by 0.02 before a softmax."""

LEAST = 1e-7
"""Gradients are compared relative to at least this share of the model's largest gradient. The
gradient of a bias before a batch norm is 0, and is computed as rounding noise."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    command = parser(__doc__)
    command.add_argument("--keep", type=Path, metavar="JSON", help="only take rows over")
    if path := command.parse_args(arguments).keep:
        return keep(path, COMPILED)
    return run(command, arguments, catalogue, lambda model, _: judged(*model), line)


def catalogue() -> dict[str, tuple[Callable[[], Any], float]]:
    """Return what makes each model and its inputs, and the limit of its difference."""
    from support.zoo import catalog, stages

    catalog.quiet()
    from support.trainable import packages, plain

    trained = {**plain.MODELS, **packages.MODELS}
    evaluated = {n: e for n, e in catalog.entries().items() if e.dtype == "float32"}
    makers: dict[str, Callable[[], Any]] = {
        **{f"{name}{TRAINED}": make for name, make in trained.items()},
        **{name: partial(stages.prepare, entry) for name, entry in evaluated.items()},
    }
    return {name: (make, IN_FLOAT32.get(name, NEAR)) for name, make in makers.items()}


def judged(make: Callable[[], Any], limit: float) -> dict[str, Any]:
    """Return the row of a model."""
    import torch

    import relax_ext.torch

    torch.manual_seed(0)
    module, inputs = make()
    module = module.double()
    batch = [widened(each) for each in inputs]
    stage = "PyTorch alone"
    try:
        torch.manual_seed(1)
        expected = computed(copy.deepcopy(module), batch, lambda one: one)
        stage = "compiled"
        relax_ext.torch.report(clear=True)
        torch._dynamo.reset()
        start = time.monotonic()
        torch.manual_seed(1)
        found = computed(module, batch, lambda one: torch.compile(one, backend="tvm_conv"))
    except Exception as error:  # a row says what blocks a model
        lines = str(error).strip().splitlines() or [""]
        return {"right": False, "failed": f"{stage}: {type(error).__name__}: {lines[-1][:200]}"}
    graphs = relax_ext.torch.report().graphs
    largest = [float(theirs.abs().max()) for theirs in expected]
    distance = max(
        float((ours - theirs).abs().max()) / max(size, LEAST * max(largest))
        for ours, theirs, size in zip(found, expected, largest)
    )
    unknown = {name: why for graph in graphs for name, why in sorted(graph.unknown.items())}
    parts = sum(len(graph.parts) for graph in graphs)
    row = {"distance": distance, "parts": parts, "in_pytorch": unknown}
    return {"right": distance <= limit, **row, "seconds": round(time.monotonic() - start, 1)}


def computed(module: Any, batch: Sequence[Any], compiled: Callable[[Any], Any]) -> list[Any]:
    """Return the results of a module, or its loss and its gradients in training mode."""
    import torch

    if not module.training:
        with torch.no_grad():
            return list(floats(compiled(module)(*batch)))
    loss = compiled(module)(*batch)
    loss.backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [loss.detach(), *gradients]


def widened(value: Any) -> Any:
    """Return a value with its floats in float64."""
    import torch

    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


def floats(result: Any) -> Iterator[Any]:
    """Yield the tensors of floats in a result."""
    import torch

    if isinstance(result, torch.Tensor):
        if result.is_floating_point():
            yield result
    elif isinstance(result, dict):
        for value in result.values():
            yield from floats(value)
    elif isinstance(result, (list, tuple)):
        for value in result:
            yield from floats(value)


def line(row: dict[str, Any]) -> str:
    """Return a row in words."""
    if "failed" in row:
        return f"failed: {row['failed']}"
    left = f", in PyTorch: {', '.join(row['in_pytorch'])}" if row["in_pytorch"] else ""
    verdict = "right" if row["right"] else "WRONG"
    return (
        f"{verdict}, off by {row['distance']:.0e}, {row['parts']} parts, {row['seconds']} s{left}"
    )


if __name__ == "__main__":
    sys.exit(main())
