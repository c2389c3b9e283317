# SPDX-License-Identifier: Apache-2.0
"""Relax modules out of cases: one function per case, compiled together, run one by one.

Only what a user would call is used: ``relax.op``, ``relax.transform``, ``tvm.compile``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.script import relax as R

import relax_ext
from topi_ext.compat import tensor_type, type_of

from . import compare, oracle
from .cases import Case, numbers
from .targets import quickly_compiled


@cache
def target() -> tvm.target.Target:
    """Return the target of this machine."""
    return quickly_compiled(relax_ext.host_target())


def stored_shape(
    case: Case, which: int, sizes: Mapping[str, object] | None = None
) -> tuple[Any, ...]:
    """Shape of operand `which` as stored; `sizes` puts symbols in place of N, D, H or W."""
    shape = case.shapes[which]
    canonical = case.kernel_canonical if which == 1 else case.data_canonical
    if which == 1 or not sizes:
        return case.stored(np.empty(shape, np.int8), which).shape
    known = dict(zip(canonical, shape), **sizes)
    return tuple(known[letter] for letter in case.layouts[which])


def call(case: Case, data: relax.Expr, weight: relax.Expr) -> relax.Call:
    """The operator of the case, as a user calls it."""
    return getattr(relax.op.nn, case.name)(data, weight, **case.attributes())


def parameters(case: Case, sizes: Mapping[str, object] | None = None) -> list[relax.Var]:
    return [
        relax.Var(name, R.Tensor(stored_shape(case, which, sizes), case.dtype))
        for which, name in enumerate(("data", "weight"))
    ]


def module(
    body: Callable[..., relax.Expr],
    *operands: Any,
    dtype: str = "float32",
    name: str = "main",
    attrs: dict[str, Any] | None = None,
) -> tvm.IRModule:
    """Return a module of one function, what `body` gives of its parameters.

    Parameters
    ----------
    operands : relax.Var, tensor or sequence of sizes
        A parameter, or the array, tensor or shape that it is made for; `dtype` is that of shapes.
    """
    given = []
    for number, operand in enumerate(operands):
        if not isinstance(operand, relax.Var):
            shape = operand.shape if hasattr(operand, "shape") else operand
            stated = str(getattr(operand, "dtype", dtype)).removeprefix("torch.")
            operand = relax.Var(f"x{number}", tensor_type(list(shape), stated, len(shape)))
        given.append(operand)
    bb = relax.BlockBuilder()
    with bb.function(name, given, attrs=attrs):
        with bb.dataflow():
            out = bb.emit_output(body(*given))
        bb.emit_func_output(out)
    return bb.get()


def joined(modules: Mapping[str, tvm.IRModule]) -> tvm.IRModule:
    """One module of the functions ``main``, by name: most of what compiling takes is per module."""
    mains = {name: mod["main"] for name, mod in modules.items()}
    return tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in mains.items()})


def emit(value: relax.Expr) -> relax.Var:
    """Bind a value in the function that is being built; needed where it is read twice."""
    return relax.BlockBuilder.current().emit(value)


def forward_module(
    cases: Sequence[Case], sizes: Mapping[str, object] | None = None
) -> tvm.IRModule:
    """Functions ``f0(data, weight)``, ``f1(data, weight)``, ..."""
    bb = relax.BlockBuilder()
    for number, case in enumerate(cases):
        data, weight = parameters(case, sizes)
        with bb.function(f"f{number}", [data, weight]):
            with bb.dataflow():
                out = bb.emit_output(call(case, data, weight))
            bb.emit_func_output(out)
    return bb.get()


def gradient_module(
    cases: Sequence[Case],
    sizes: Mapping[str, object] | None = None,
    transforms: Sequence[tvm.ir.transform.Pass] = (),
) -> tvm.IRModule:
    """Functions ``f0_adjoint(data, weight, seed) -> loss, (ddata, dweight)``, ...

    The loss is ``sum(op(data, weight) * seed)``, so that `seed` is the gradient of the result.
    `transforms` are applied to the operators before that.
    """
    forward = forward_module(cases, sizes)
    for transform in transforms:
        forward = transform(forward)
    bb = relax.BlockBuilder()
    for number in range(len(cases)):
        f = relax.utils.copy_with_new_vars(forward[f"f{number}"])
        with bb.function(f"f{number}"):
            with bb.dataflow():
                _emit_body(bb, f)
                result = f.body.body
                seed = relax.Var("seed", type_of(result))
                out = bb.emit_output(relax.op.sum(relax.op.multiply(result, seed)))
            bb.emit_func_output(out, [*f.params, seed])
    mod = bb.get()
    for number in range(len(cases)):
        mod = differentiated(mod, f"f{number}", 2)
    return mod


def _emit_body(bb: relax.BlockBuilder, f: relax.Function) -> None:
    for block in f.body.blocks:
        for binding in block.bindings:
            bb.emit_normalized(binding)


def differentiated(mod: tvm.IRModule, name: str, count: int) -> tvm.IRModule:
    """Add ``{name}_adjoint``, the gradients in the first `count` parameters; drop `name`."""
    mod = relax.transform.Gradient(name, require_grads=list(mod[name].params[:count]))(mod)
    kept = {gv.name_hint: f for gv, f in mod.functions_items() if gv.name_hint != name}
    return tvm.IRModule(kept)


def second_order_module(cases: Sequence[Case]) -> tvm.IRModule:
    """Functions ``g0_adjoint(data, weight, seed, u, v)``: gradients in the first three of
    ``sum(ddata * u) + sum(dweight * v)``, a scalar made of the outputs of ``f0_adjoint``.
    """
    first = gradient_module(cases)
    bb = relax.BlockBuilder()
    for number, case in enumerate(cases):
        f = relax.utils.copy_with_new_vars(first[f"f{number}_adjoint"])
        u, v = parameters(case)
        with bb.function(f"g{number}", [*f.params, u, v]):
            with bb.dataflow():
                _emit_body(bb, f)
                ddata, dweight = f.body.body.fields[1].fields
                scalar = relax.op.add(
                    relax.op.sum(relax.op.multiply(ddata, u)),
                    relax.op.sum(relax.op.multiply(dweight, v)),
                )
                out = bb.emit_output(scalar)
            bb.emit_func_output(out)
    mod = bb.get()
    for number in range(len(cases)):
        mod = differentiated(mod, f"g{number}", 3)
    return mod


def compiled(
    mod: tvm.IRModule, on: tvm.target.Target | str | None = None, *, pipeline: bool = False
) -> relax.VirtualMachine:
    """Compile a module by ``tvm.compile``, with the pipeline for whole models if asked."""
    on = on or target()
    options = {"relax_pipeline": relax_ext.pipeline(on)} if pipeline else {}
    return relax.VirtualMachine(tvm.compile(mod, on, **options), tvm.cpu())


def run(vm: relax.VirtualMachine, name: str, *arrays: np.ndarray) -> list[np.ndarray]:
    """Results, tuples flattened."""
    result = vm[name](*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays))
    return [t.numpy() for t in _flat(result)]


def _flat(result: Any) -> Iterator[Any]:
    if hasattr(result, "numpy"):
        yield result
    else:
        for part in result:
            yield from _flat(part)


# ---------------------------------------------------------------- checks


def check_forward(cases: Sequence[Case], rng: np.random.Generator) -> None:
    """Compile every case in one module and compare every result with the oracle's."""
    vm = compiled(forward_module(cases))
    for number, case in enumerate(cases):
        run_forward(vm, f"f{number}", case, rng)


def run_forward(vm: relax.VirtualMachine, name: str, case: Case, rng: np.random.Generator) -> None:
    """Run one function on random operands of the case's sizes and compare."""
    data, weight = case.arrays(rng)
    (got,) = run(vm, name, case.stored(data, 0), case.stored(weight, 1))
    case.check(case.opened(got, 2), data, weight)


def check_gradients(cases: Sequence[Case], rng: np.random.Generator) -> None:
    """Differentiate and compile every case in one module, compare with torch.autograd."""
    vm = compiled(gradient_module(cases))
    for number, case in enumerate(cases):
        run_gradients(vm, f"f{number}_adjoint", case, rng)


def run_gradients(
    vm: relax.VirtualMachine, name: str, case: Case, rng: np.random.Generator
) -> None:
    """Run one adjoint on random operands of the case's sizes and compare both gradients."""
    data, weight = case.arrays(rng)
    seed = numbers(rng, case.out_shape, case.dtypes[2])
    stored = [case.stored(a, which) for which, a in enumerate((data, weight, seed))]
    _, *got = run(vm, name, *stored)
    wanted = gradients(case, data, weight, seed)
    limits = gradients(case, *(np.abs(a.astype(np.float64)) for a in (data, weight, seed)))
    dtypes = (case.dtype, case.dtypes[2], case.dtype)
    for which, terms in enumerate((case.data_terms, case.weight_terms)):
        compare.assert_close(
            case.opened(got[which], which),
            wanted[which],
            limits[which],
            terms,
            dtypes=dtypes,
            what=f"gradient {which} of {case}",
        )


def gradients(
    case: Case, data: np.ndarray, weight: np.ndarray, seed: np.ndarray
) -> list[np.ndarray]:
    """Both gradients by torch.autograd, canonical, float64."""
    leaves = [oracle.tensor(a, requires_grad=True) for a in (data, weight)]
    found = torch.autograd.grad(case.forward(*leaves), leaves, oracle.tensor(seed))
    return [g.numpy() for g in found]


def check_second_order(cases: Sequence[Case], rng: np.random.Generator) -> None:
    """Differentiate twice, compare with torch.autograd twice."""
    vm = compiled(second_order_module(cases))
    for number, case in enumerate(cases):
        arrays = [
            numbers(rng, shape, dtype)
            for shape, dtype in zip(
                (*case.shapes, *case.shapes[:2]),
                (case.dtype, case.dtype, case.dtypes[2], case.dtype, case.dtype),
            )
        ]
        stored = [case.stored(a, which) for which, a in zip((0, 1, 2, 0, 1), arrays)]
        _, *got = run(vm, f"g{number}_adjoint", *stored)
        wanted = second_gradients(case, *arrays)
        limits = second_gradients(case, *(np.abs(a.astype(np.float64)) for a in arrays))
        # A gradient in the data adds up products over channels and taps, and so on; the seed's
        # is a sum of two.
        terms = (case.data_terms, case.weight_terms, 2 * case.terms)
        for which in range(3):
            compare.assert_close(
                case.opened(got[which], which),
                wanted[which],
                limits[which],
                terms[which],
                dtypes=(case.dtype,) * 3,
                what=f"second-order gradient {which} of {case}",
            )


def second_gradients(case: Case, *arrays: np.ndarray) -> list[np.ndarray]:
    """Gradients of ``sum(ddata * u) + sum(dweight * v)`` in data, weight and seed."""
    leaves = [oracle.tensor(a, requires_grad=True) for a in arrays[:3]]
    data, weight, seed = leaves
    first = torch.autograd.grad(case.forward(data, weight), (data, weight), seed, create_graph=True)
    terms = [(g * oracle.tensor(a)).sum() for g, a in zip(first, arrays[3:])]
    scalar = torch.stack(terms).sum()
    return [g.numpy() for g in torch.autograd.grad(scalar, leaves)]
