# SPDX-License-Identifier: Apache-2.0
"""The pass that puts what follows a convolution into its kernel, and packs constant weights.

A chain begins at a convolution or transposed convolution and goes on while the result so far has
one reader, and that reader is a step that kernels know: a bias, a scale, a residual, an activation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import tvm

from topi_ext import backend
from topi_ext.compat import (
    call_attr,
    constant_value,
    dtype_name,
    known_shape,
    relax,
    same_size,
    tensor_type,
    tensor_type_of,
)
from topi_ext.epilogue import Fused, PostOp
from topi_ext.problem import OPERANDS
from topi_ext.target import advise

from .attrs import STOCK, Conv, read
from .target import target_of

R = relax()

_BINARY = {f"relax.{name}": name for name in ("add", "subtract", "multiply", "divide")}
_COMMUTATIVE = ("add", "multiply")
_UNARY = {
    "relax.nn.relu": "relu",
    "relax.nn.leakyrelu": "leaky_relu",
    "relax.nn.silu": "silu",
    "relax.sigmoid": "sigmoid",
    "relax.tanh": "tanh",
}


@dataclass
class _Chain:
    """A convolution and the steps behind it."""

    call: Any
    conv: Conv
    steps: list[PostOp] = field(default_factory=list)
    operands: list[Any] = field(default_factory=list)


def fuse_convolutions(module: Any) -> Any:
    """Lower convolutions of `module` together with the element-wise operators behind them.

    Constant weights are packed by a call whose operands are constants, which ``FoldConstant``
    computes at compile time.  What has no kernel of ours is left as it is.

    Parameters
    ----------
    module : tvm.IRModule

    Returns
    -------
    tvm.IRModule
    """
    mutator = _Fuser(module)
    for name, func in list(module.functions_items()):
        if isinstance(func, R.Function):
            mutator.rewrite(name, func)
    return mutator.builder_.get()


@R.expr_functor.mutator
class _Fuser(R.PyExprMutator):
    """Replaces the last call of each chain; the others are dead then."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.chains: dict[Any, _Chain] = {}

    def rewrite(self, name: Any, func: Any) -> None:
        """Put the fused function into the builder's module."""
        self.chains = _chains(func)
        if self.chains:
            fused = R.analysis.remove_all_unused(self.visit_expr(func))
            self.builder_.update_func(name, fused)

    def visit_call_(self, call: Any) -> Any:
        """Lower a chain where `call` ends one."""
        chain = self.chains.get(call)
        if chain is None:
            return super().visit_call_(call)
        conv, found = chain.conv, tensor_type_of(call)
        target = target_of(found)
        advise("relax_ext", target)
        dtypes = tuple(conv.dtypes[role] for role in OPERANDS[conv.face] + conv.result)
        request = (
            conv.face, conv.geometry, conv.plain, conv.n, dtypes, target, Fused(tuple(chain.steps)),
        )  # fmt: skip
        data, weight = (self.visit_expr(arg) for arg in chain.call.args[:2])
        packing = None
        if constant_value(weight) is not None:
            packing, kernel = backend.prepacked(*request)
        else:
            kernel = backend.prim_func(*request)
        if packing is not None:
            packed = tensor_type([packing.elements], packing.dtype, 1)
            packer = self.builder_.add_func(packing.func, f"{conv.op}_pack")
            weight = self.builder_.emit(R.call_tir(packer, [weight], packed))
        operands = [data, weight, *map(self.visit_expr, chain.operands)]
        name = "_".join([conv.op, *(step.op for step in chain.steps)])
        return R.call_tir(self.builder_.add_func(kernel, name), operands, found)


def _chains(func: Any) -> dict[Any, _Chain]:
    """The chains of a function, by their last calls."""
    bindings = [
        (binding.var, binding.value)
        for block in func.body.blocks
        if isinstance(block, R.DataflowBlock)
        for binding in block.bindings
    ]
    readers: Counter[Any] = Counter()
    reader: dict[Any, tuple[Any, Any]] = {}
    for var, value in bindings:
        for used in R.analysis.free_vars(value):
            readers[used] += 1
            reader[used] = (var, value)
    found = {}
    for var, value in bindings:
        chain = _begun(value)
        if chain is None:
            continue
        last = value
        while isinstance(var, R.DataflowVar) and readers[var] == 1:
            after, call = reader[var]
            if not _extend(chain, var, call):
                break
            var, last = after, call
        found[last] = chain
    return found


def _begun(value: Any) -> _Chain | None:
    """The chain that a convolution begins, where a kernel of ours can end it."""
    is_call = isinstance(value, R.Call) and isinstance(value.op, tvm.ir.Op)
    if not (is_call and value.op.name in STOCK):
        return None
    conv = read(value)
    if conv is None or conv.geometry is None or conv.is_blocked:
        return None
    if "" in conv.dtypes.values():
        return None  # legalization refuses it
    found = tensor_type_of(value)
    is_empty = 0 in conv.shape(conv.result) or conv.n == 0
    if is_empty or not backend.has_kernels(target_of(found)):
        return None
    return _Chain(value, conv)


def _extend(chain: _Chain, var: Any, call: Any) -> bool:
    """Add `call`, which reads `var`, to the chain; whether it could be."""
    if not (isinstance(call, R.Call) and isinstance(call.op, tvm.ir.Op)):
        return False
    conv, found = chain.conv, tensor_type_of(call)
    dtype = conv.dtypes[conv.result]
    if (
        found is None
        or dtype_name(found.dtype) != dtype
        or not dtype.startswith(("float", "bfloat"))
    ):
        return False
    name = str(call.op.name)
    if name in _UNARY:
        slope = float(call_attr(call, "alpha")) if name == "relax.nn.leakyrelu" else 0.0
        chain.steps.append(PostOp(_UNARY[name], value=slope))
        return True
    if name not in _BINARY:
        return False
    left, right = call.args
    if right.same_as(var) and _BINARY[name] in _COMMUTATIVE:
        left, right = right, left
    if not left.same_as(var) or right.same_as(var):
        return False
    step = _binary(_BINARY[name], conv, right)
    if step is None:
        return False
    chain.steps.append(step)
    if step.order:
        chain.operands.append(right)
    return True


def _binary(op: str, conv: Conv, operand: Any) -> PostOp | None:
    """The step with this operand, which may be broadcast, but must not broadcast the result."""
    found = tensor_type_of(operand)
    shape = None if found is None else known_shape(found.shape)
    layout = conv.layouts[conv.result]
    if shape is None or len(shape) > len(layout.order):
        return None
    constant = constant_value(operand)
    if constant is not None and all(size == 1 for size in shape):
        return PostOp(op, value=float(constant.numpy().reshape(())))
    if not shape:
        return None
    order = layout.order[len(layout.order) - len(shape) :]
    whole = dict(zip(layout.letters, conv.shape(conv.result)))
    varies = ""
    for letter, size in zip(order, shape):
        if same_size(size, whole[letter]):
            varies += letter
        elif not same_size(size, 1):
            return None
    return PostOp(op, order, varies)
