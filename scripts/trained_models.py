# SPDX-License-Identifier: Apache-2.0
"""Train models by ``relax_ext.training`` and by PyTorch, and compare losses and weights.

``python scripts/trained_models.py --json out/trained.json`` takes 20 steps of each model of
``support/trainable``, in float64 and float32 by PyTorch and in float32 by ours, from the same
weights and on the same batch.  A model is right where ours is as near to float64 as PyTorch's own
float32 is, or nearer than `NEAR`.  Models of packages need ``make env-models``.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from support.model_rows import parser, run

STEPS = 20
RATE, MOMENTUM = 1e-3, 0.9
SEEDS = (0, 1, 2)
NOISE = 1e-6
NEAR = 1e-4
"""Distance from float64, relative to the largest value, that float32 may have in any case."""
TIMES = 4.0
"""Times the distance of PyTorch's own float32, which one seed may have by chance."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    command = parser(__doc__)
    command.add_argument("--steps", type=int, default=STEPS)
    return run(command, arguments, catalogue, lambda make, given: judged(make, given.steps), line)


def catalogue() -> dict[str, Callable[[], Any]]:
    """Return the constructors of all models whose packages are installed."""
    from support.trainable import plain

    try:
        from support.zoo.catalog import quiet

        quiet()
        from support.trainable import packages
    except ImportError:
        return dict(plain.MODELS)
    return {**plain.MODELS, **packages.MODELS}


def judged(make: Callable[..., Any], steps: int) -> dict[str, Any]:
    """Return the row of a model, of another seed where the first one is not right.

    An input of relu near zero changes its sign by one rounding, and all gradients with it, in
    PyTorch as in ours.  That is chance: a model that is wrong is so from every seed.
    """
    for seed in SEEDS:
        row = {**compared(make, steps, seed), "seed": seed}
        if row["right"] or "failed" in row:
            break
    return row


def compared(make: Callable[..., Any], steps: int, seed: int) -> dict[str, Any]:
    """Return the row of a model from one seed."""
    module, batch = make(seed)
    wide = tuple(one.double() if one.is_floating_point() else one for one in batch)
    exact = by_torch(copy.deepcopy(module).double(), wide, steps)
    narrow = by_torch(copy.deepcopy(module), batch, steps)
    start = time.monotonic()
    try:
        ours = by_tvm(copy.deepcopy(module), batch, steps)
    except Exception as error:  # a row says what blocks a model
        lines = str(error).strip().splitlines() or [""]
        return {"right": False, "failed": f"{type(error).__name__}: {lines[-1][:200]}"}
    row: dict[str, Any] = {"seconds": round(time.monotonic() - start, 1)}
    for what in ("losses", "weights"):
        row[what] = distance(ours[what], exact[what])
        row[f"torch_{what}"] = distance(narrow[what], exact[what])
    row["right"] = all(
        row[what] <= max(NEAR, TIMES * row[f"torch_{what}"]) for what in ("losses", "weights")
    )
    row["loss"] = [float(exact["losses"]["loss"][0]), float(exact["losses"]["loss"][-1])]
    return row


def optimizer_of(module: Any) -> Any:
    """Return the optimizer of both: stochastic gradient descent with momentum."""
    import torch

    return torch.optim.SGD(module.parameters(), RATE, MOMENTUM)


def by_torch(module: Any, batch: Any, steps: int) -> dict[str, Any]:
    """Train a module eagerly."""
    import torch

    optimizer, losses = optimizer_of(module), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": {"loss": torch.tensor(losses).double()}, "weights": state_of(module)}


def by_tvm(module: Any, batch: Any, steps: int) -> dict[str, Any]:
    """Train a module by ours."""
    import torch

    import relax_ext

    step = relax_ext.training(module, batch, optimizer_of(module))
    losses = [float(step(*batch)) for _ in range(steps)]
    step.to_torch()
    return {"losses": {"loss": torch.tensor(losses).double()}, "weights": state_of(module)}


def state_of(module: Any) -> dict[str, Any]:
    """Return weights and floating-point buffers in float64, by name."""
    state = module.state_dict()
    return {k: v.detach().double() for k, v in state.items() if v.is_floating_point()}


def distance(ours: dict[str, Any], exact: dict[str, Any]) -> float:
    """Return the largest difference of a tensor, relative to its largest value.

    A tensor smaller than `NOISE` of the largest is rounding noise, as a bias before a batch norm.
    """
    sizes = {name: float(value.abs().max()) for name, value in exact.items() if value.numel()}
    least = NOISE * max(sizes.values())
    return max(
        float((ours[name] - exact[name]).abs().max()) / max(size, least, 1e-30)
        for name, size in sizes.items()
    )


def line(row: dict[str, Any]) -> str:
    """Return what is printed of a row."""
    if "failed" in row:
        return row["failed"]
    pairs = [f"{one} {row[one]:.0e} ({row[f'torch_{one}']:.0e})" for one in ("losses", "weights")]
    return f"{'right' if row['right'] else 'WRONG'}, off by {', '.join(pairs)} (PyTorch's float32)"


if __name__ == "__main__":
    sys.exit(main())
