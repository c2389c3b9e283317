# SPDX-License-Identifier: Apache-2.0
"""Relay modules out of cases: one function of many results, built once.

Only what a user would call is used: ``relay.nn``, ``relay.transform``, ``create_executor``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relay

import relay_ext

from . import compare, oracle
from .cases import Case, numbers


@cache
def target() -> tvm.target.Target:
    """Return the target of this machine."""
    return relay_ext.host_target()


def call(case: Case, data: relay.Expr, weight: relay.Expr, *, stated: bool = True) -> relay.Call:
    """The operator of the case; `stated` gives the attributes that the operands imply."""
    layouts = dict(zip(("data_layout", "kernel_layout", "out_layout"), case.layouts))
    attributes = {**case.attributes(), **layouts}
    if stated:
        attributes.update(channels=case.outs, kernel_size=case.kernel)
    return getattr(relay.nn, case.name)(data, weight, **attributes)


def parameters(case: Case, number: int, unknown: str = "") -> list[relay.Var]:
    """Data and weight; the data's axes named by the letters of `unknown` have no known size."""
    made = []
    for which, name in enumerate(("data", "weight")):
        shape: Any = case.stored(np.empty(case.shapes[which], np.int8), which).shape
        if which == 0 and unknown:
            letters = case.layouts[0]
            shape = [relay.Any() if a in unknown else size for a, size in zip(letters, shape)]
        made.append(relay.var(f"{name}{number}", shape=shape, dtype=case.dtype))
    return made


def module(
    cases: Sequence[Case], *, stated: bool = True, unknown: str = ""
) -> tuple[tvm.IRModule, list[relay.Var]]:
    """A function of all operands that gives all results."""
    operands = [parameters(case, number, unknown) for number, case in enumerate(cases)]
    results = [call(case, *two, stated=stated) for case, two in zip(cases, operands)]
    flat = [var for two in operands for var in two]
    body = results[0] if len(results) == 1 else relay.Tuple(results)
    return tvm.IRModule.from_expr(relay.Function(flat, body)), flat


def run(
    mod: tvm.IRModule, arrays: Sequence[np.ndarray], *, executor: str = "graph", opt_level: int = 3,
    on: Any = None,
) -> list[np.ndarray]:  # fmt: skip
    """All results of a module, nested tuples flattened."""
    with tvm.transform.PassContext(opt_level=opt_level):
        made = relay.create_executor(executor, mod=mod, device=tvm.cpu(0), target=on or target())
        return flattened(made.evaluate()(*map(to_tvm, arrays)))


def to_tvm(array: np.ndarray) -> tvm.nd.NDArray:
    """A TVM array; bfloat16, which NumPy lacks, travels as its bits."""
    if array.dtype != compare.numpy_dtype("bfloat16"):
        return tvm.nd.array(array)
    made = tvm.nd.empty(array.shape, "bfloat16")
    return made.copyfrom(array.view("uint16"))


def flattened(value: Any) -> list[np.ndarray]:
    if isinstance(value, (list, tuple, tvm.runtime.container.ADT, tvm.ir.container.Array)):
        return [array for item in value for array in flattened(item)]
    if value.dtype == "bfloat16":
        bits = np.empty(value.shape, "uint16")
        raw = value.numpy()
        return [raw.view(compare.numpy_dtype("bfloat16")) if raw.dtype == "uint16" else bits]
    return [value.numpy()]


def check_forward(
    cases: Sequence[Case], rng: np.random.Generator, *, stated: bool = True, unknown: str = "",
    **how: Any,
) -> None:  # fmt: skip
    """Build all cases into one module, run them, compare with PyTorch in float64."""
    mod, _ = module(cases, stated=stated, unknown=unknown)
    operands = [case.arrays(rng) for case in cases]
    stored = [
        case.stored(array, which)
        for case, two in zip(cases, operands)
        for which, array in enumerate(two)
    ]
    results = run(mod, stored, **how)
    assert len(results) == len(cases)
    for case, two, got in zip(cases, operands, results):
        case.check(case.opened(got, 2), *two)


def gradient_module(case: Case, mode: str, *, stated: bool = True) -> tvm.IRModule:
    """``(data, weight, seed) -> (loss, (ddata, dweight, dseed))``, loss = sum(op * seed)."""
    data, weight = parameters(case, 0)
    seed = relay.var(
        "seed",
        shape=case.stored(np.empty(case.out_shape, np.int8), 2).shape,
        dtype=case.dtypes[2],
    )
    body = relay.sum(relay.multiply(call(case, data, weight, stated=stated), seed))
    forward = tvm.IRModule.from_expr(relay.Function([data, weight, seed], body))
    forward = relay.transform.InferType()(forward)
    return tvm.IRModule.from_expr(relay.transform.gradient(forward["main"], mode=mode))


def check_gradients(
    case: Case, rng: np.random.Generator, mode: str = "first_order", stated: bool = True
) -> None:
    """Both gradients against torch.autograd in float64."""
    mod = relay.transform.InferType()(gradient_module(case, mode, stated=stated))
    data, weight = case.arrays(rng)
    seed = numbers(rng, case.out_shape, case.dtypes[2])
    stored = [case.stored(a, which) for which, a in enumerate((data, weight, seed))]
    # Higher order makes references, which only this executor knows.
    executor = "graph" if mode == "first_order" else "debug"
    _, ddata, dweight, _ = run(mod, stored, executor=executor)
    arrays = [a.astype(np.float64) for a in (data, weight, seed)]
    wanted = gradients(case, *arrays)
    limits = gradients(case, *map(np.abs, arrays))
    dtypes = (case.dtypes[2], case.dtype, case.dtype)
    for which, got, terms in ((0, ddata, case.data_terms), (1, dweight, case.weight_terms)):
        compare.assert_close(
            case.opened(got, which), wanted[which], limits[which], terms, dtypes=dtypes, what=case
        )


def gradients(case: Case, *arrays: np.ndarray) -> list[np.ndarray]:
    """The float64 gradients of data and weight for the gradient `seed` of the result."""
    data, weight, seed = (oracle.tensor(a, requires_grad=True) for a in arrays)
    loss = (case.forward(data, weight) * seed).sum()
    return [g.detach().numpy() for g in torch.autograd.grad(loss, (data, weight))]
