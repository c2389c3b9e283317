# SPDX-License-Identifier: Apache-2.0
"""The pass that puts what follows a convolution or a matrix product into its kernel, and packs
constant weights.

A chain begins at a convolution, a transposed convolution or a matrix product and goes on while the
result so far has one reader, and that reader is a step that kernels know: a bias, a scale, a
residual, an activation; behind a matrix product also a reshape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
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
    tensor_type_of,
)
from topi_ext.epilogue import PostOp
from topi_ext.target import advise

from .anchor import Anchor, ConvAnchor
from .attrs import STOCK, read
from .matmul import MATMUL
from .matmul import read as read_product
from .rows import read as read_rows
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
    """A convolution or a matrix product, and the steps behind it."""

    anchor: Anchor
    steps: list[PostOp] = field(default_factory=list)
    operands: list[Any] = field(default_factory=list)


def fuse_kernels(module: Any) -> Any:
    """Lower convolutions and matrix products of `module` together with the element-wise operators
    behind them.

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
        advise("relax_ext", target_of(tensor_type_of(call)))
        operands = [self.visit_expr(operand) for operand in chain.operands]
        return chain.anchor.lowered(self, chain.steps, operands)


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
    found, values = {}, dict(bindings)
    for var, value in bindings:
        chain = _begun(value, values.get)
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


def _begun(value: Any, lookup: Callable[[Any], Any]) -> _Chain | None:
    """The chain that a call begins, where a kernel of ours can end it."""
    is_call = isinstance(value, R.Call) and isinstance(value.op, tvm.ir.Op)
    if is_call and value.op.name == MATMUL:
        product = read_product(value, lookup)
        return product and _Chain(product)
    rows = read_rows(value, lookup) if is_call else None
    if rows is not None:
        return _Chain(*rows)
    if not (is_call and value.op.name in STOCK):
        return None
    conv = read(value)
    if conv is None or conv.geometry is None or conv.is_blocked:
        return None
    if "" in conv.dtypes.values():
        return None  # legalization refuses it
    found = tensor_type_of(value)
    is_empty = 0 in conv.shape(conv.result) or conv.n == 0
    target = target_of(found)
    if is_empty or not backend.has_kernels(target):
        return None
    return _Chain(ConvAnchor(value, conv, target, found))


def _extend(chain: _Chain, var: Any, call: Any) -> bool:
    """Add `call`, which reads `var`, to the chain; whether it could be."""
    if not (isinstance(call, R.Call) and isinstance(call.op, tvm.ir.Op)):
        return False
    anchor, found = chain.anchor, tensor_type_of(call)
    dtype = anchor.dtype
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
    if name == "relax.reshape":
        shape = known_shape(found.shape)
        return shape is not None and anchor.view(shape)
    if name not in _BINARY:
        return False
    left, right = call.args
    if right.same_as(var) and _BINARY[name] in _COMMUTATIVE:
        left, right = right, left
    if not left.same_as(var) or right.same_as(var):
        return False
    step = _binary(_BINARY[name], anchor, right)
    if step is None:
        return False
    chain.steps.append(step)
    if step.order:
        chain.operands.append(right)
    return True


def _binary(op: str, anchor: Anchor, operand: Any) -> PostOp | None:
    """The step with this operand, which may be broadcast, but must not broadcast the result."""
    found = tensor_type_of(operand)
    shape = None if found is None else known_shape(found.shape)
    if shape is None or len(shape) > len(anchor.axes):
        return None
    constant = constant_value(operand)
    if constant is not None and all(size == 1 for size in shape):
        return PostOp(op, value=float(constant.numpy().reshape(())))
    if not shape:
        return None
    axes = anchor.axes[len(anchor.axes) - len(shape) :]
    varies = ""
    for letters, size in zip(axes, shape):
        if same_size(size, prod((anchor.sizes[a] for a in letters), start=1)):
            varies += letters
        elif not same_size(size, 1):
            return None
    return PostOp(op, "".join(axes), varies) if varies or not anchor.needs_axes else None
