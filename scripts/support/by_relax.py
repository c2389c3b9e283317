# SPDX-License-Identifier: Apache-2.0
"""TVM's Relax, with relax_ext and stock: modules, builds and calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
import tvm
from torch import Tensor
from tvm import relax

import relax_ext
from topi_ext import compat
from topi_ext.compat import tir
from topi_ext.spec.conv import OPERANDS
from topi_ext.spec.geometry import conv_size

from .cases import Case
from .engines import UnavailableError

NAME = "Relax"
VERSIONS = {name: version(name) for name in ("apache-tvm", "apache-tvm-ffi")}
host_target = relax_ext.host_target


@dataclass
class Built:
    """A compiled operator of the tensors with the given roles; see :class:`engines.Built`."""

    roles: str
    seconds: float
    machine: Any

    def bound(self, tensors: Mapping[str, Tensor]) -> Callable[[], Any]:
        """Return a call without arguments: the operands are put into the virtual machine once."""
        arrays = [tvm.runtime.from_dlpack(tensors[role]) for role in self.roles]
        self.machine.save_function("main", "bound", *arrays)
        return self.machine["bound"]


def as_torch(result: Any) -> Tensor:
    """Return the result of a bound call, as a tensor of its own."""
    return torch.utils.dlpack.from_dlpack(result).clone()


def results(found: Any) -> list[Tensor]:
    """Return the results of a call of a virtual machine, as tensors of their own."""
    return list(map(as_torch, [found] if isinstance(found, tvm.runtime.Tensor) else found))


def array(tensor: Any) -> Any:
    """TVM's view of a tensor of PyTorch or NumPy."""
    return tvm.runtime.from_dlpack(tensor)


def machine(module: Any, target: Any) -> Any:
    """Return the virtual machine of a module that is compiled by ``relax_ext.pipeline``."""
    executable = tvm.compile(module, target, relax_pipeline=relax_ext.pipeline(target))
    return relax.VirtualMachine(executable, tvm.cpu())


def warm_up(target: Any) -> None:
    """Compile something small: what a first build loads belongs to no case."""
    x = tensor("x", [1])
    tvm.compile(module_of([x], lambda x: relax.op.add(x, x)), target)


def build_ours(case: Case, kind: str, dtype: str, target: Any) -> Built:
    """Return the operator in a module of its own, through plain ``tvm.compile``."""
    return _build(OPERANDS[kind], forward(case, kind, dtype), target)


def build_symbolic(case: Case, kind: str, dtype: str, target: Any) -> Built:
    """Ours for any batch and any spatial sizes, through plain ``tvm.compile``."""
    module = forward(case, kind, dtype, of_any_size(case, kind))
    return _build(OPERANDS[kind], module, target)


def build_prepacked(case: Case, kind: str, dtype: str, target: Any, weight: Tensor) -> Built:
    """Return the operator with a constant weight, through ``relax_ext.pipeline``.

    Raises
    ------
    UnavailableError
        Where the operator has no weight.
    """
    if kind == "conv_weight_grad":
        raise UnavailableError("a weight gradient has no weight to pack")
    (data,) = _parameters(case, OPERANDS[kind][0], dtype)
    constant = relax.const(tvm.runtime.from_dlpack(weight.clone()))
    module = module_of([data], lambda data: _call(case, kind, data, constant))
    return _build(OPERANDS[kind][0], module, target, relax_pipeline=relax_ext.pipeline(target))


def kernel(func: Any, target: Any) -> Callable[..., None]:
    """Return a PrimFunc, compiled; it takes arrays."""
    named = func.with_attr("global_symbol", "main")
    return tvm.compile(tvm.IRModule({"main": named}), target=target)["main"]


def build_stock(case: Case, kind: str, dtype: str, target: Any) -> Built:
    """Return the same through stock TVM; for the weight gradient, the weight's part of stock's
    gradient.

    Raises
    ------
    UnavailableError
        When stock has no gradient.
    """
    with relax_ext.stock():
        if kind == "conv_weight_grad":
            return _build("xwy", _stock_weight_grad(case, dtype), target)
        return _build(OPERANDS[kind], forward(case, kind, dtype), target)


def _build(roles: str, module: Any, target: Any, **options: Any) -> Built:
    start = time.perf_counter()
    executable = tvm.compile(module, target, **options)
    seconds = time.perf_counter() - start
    return Built(roles, seconds, relax.VirtualMachine(executable, tvm.cpu()))


def forward(case: Case, kind: str, dtype: str, sized: Case | None = None) -> Any:
    """One operator, of operands with the sizes of `sized` if they are not those of the case."""
    params = _parameters(sized or case, OPERANDS[kind], dtype)
    return module_of(params, partial(_call, case, kind))


def _call(case: Case, kind: str, first: Any, second: Any) -> Any:
    g = case.geometry if kind == "conv_transpose" else case.as_conv()
    window: dict[str, Any] = {
        "strides": list(g.stride),
        "padding": list(g.padding),
        "dilation": list(g.dilation),
        "groups": g.groups,
    }
    if kind == "conv_weight_grad":
        return relax_ext.conv_weight_grad(first, second, g.kernel, **window)
    if kind == "conv":
        return getattr(relax.op.nn, f"conv{g.rank}d")(first, second, **window)
    conv_transpose = getattr(relax.op.nn, f"conv{g.rank}d_transpose")
    return conv_transpose(first, second, output_padding=list(g.output_padding), **window)


def _stock_weight_grad(case: Case, dtype: str) -> Any:
    name = f"conv{case.geometry.rank}d"
    rule = compat.op_attr(f"relax.nn.{name}", "FPrimalGradient")
    if rule is None:
        raise UnavailableError(f"stock has no gradient of {name}")

    def weight_part(x: Any, w: Any, y: Any) -> Any:
        # Stock's own rule, asked directly: transform.Gradient would compute y and dx as well.
        bb = relax.BlockBuilder.current()
        forward = bb.normalize(_call(case, "conv", x, w))
        return rule(relax.Var("forward", compat.type_of(forward)), forward, y, bb)[1]

    return module_of(_parameters(case, "xwy", dtype), weight_part)


def of_any_size(case: Case, kind: str) -> Case:
    """Return the case with variables for its batch and the sizes of its data, whence those of the
    rest.
    """
    g = case.as_conv()
    size = tuple(tir.Var(f"size{axis}", "int64") for axis in range(g.rank))
    if kind == "conv_transpose":
        sizes: Any = {"y_size": size}
    else:
        y = tuple(conv_size(*axis) for axis in zip(size, *g.window))
        sizes = {"x_size": size, "y_size": y}
    return replace(case, n=tir.Var("n", "int64"), geometry=replace(g, **sizes))


def tensor(name: str, shape: Any, dtype: str = "float32") -> Any:
    """Return a variable of Relax."""
    return relax.Var(name, compat.tensor_type(list(shape), dtype, len(shape)))


def _parameters(case: Case, roles: str, dtype: str) -> list[Any]:
    return [tensor(role, case.shape(role), dtype) for role in roles]


def module_of(params: Sequence[Any], body: Callable[..., Any]) -> Any:
    """Return a module whose main function has these parameters, which `body` takes."""
    bb = relax.BlockBuilder()
    with bb.function("main", list(params)):
        with bb.dataflow():
            out = bb.emit_output(body(*params))
        bb.emit_func_output(out)
    return bb.get()
