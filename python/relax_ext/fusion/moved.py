# SPDX-License-Identifier: Apache-2.0
"""Pools, concatenations, resizes and views between quantized layers move bytes.

They take elements, or the largest of some, which are the same before and after a quantization::

    quantize(max_pool(x)) = max_pool(quantize(x))
    concat(dequantize(x), dequantize(y)) = dequantize(concat(x, y))

So a quantize comes before what it alone reads, and a dequantize behind it.  The first is then
computed with the layer before, the second with the one behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax.expr_functor import PyExprMutator, mutator

from topi_ext.compat import call_attr, relax
from topi_ext.spec.conv import BYTE_RANGES

from ..ir import dtype_of, shape_of
from .constants import DEQUANTIZE, QUANTIZE, value_of
from .patterns import Function, named
from .views import PERMUTE, RESHAPES

R = relax()

_CONCAT, _RESIZE, _SLICE = "relax.concat", "relax.image.resize2d", "relax.strided_slice"
_POOLS = tuple(f"relax.nn.max_pool{rank}d" for rank in (1, 2, 3))

Step = tuple[Any, Any, str]
"""Scale, zero point and dtype of a quantization: numbers, or variables of the function."""


def move_bytes(module: Any) -> Any:
    """Return a module whose quantizations come as early as they can, dequantizations as late."""
    for mover_of in (_Quantizes, _Dequantizes):
        mover = mover_of(module)
        for name, func in list(module.functions_items()):
            if isinstance(func, R.Function):
                mover.rewrite(name, func)
        module = mover.builder_.get()
    return module


class _Mover(PyExprMutator):  # type: ignore[misc]
    """Both movers."""

    names: tuple[str, ...] = ()

    def rewrite(self, name: Any, func: Any) -> None:
        """Put the function into the builder's module."""
        self.function = Function.of(func)
        if any(named(value, *self.names) is not None for value in self.function.values.values()):
            moved = R.analysis.remove_all_unused(self.visit_expr(func))
            self.builder_.update_func(name, moved)

    def step_of(self, call: Any) -> Step | None:
        """Return scale, zero point and dtype of a quantization of bytes that has one scale.

        Numbers that are known only when the model runs are variables.
        """
        scale, zero_point = (self._number(one) for one in call.args[1:])
        dtype = dtype_of(call if call.op.name == QUANTIZE else call.args[0])
        if scale is None or zero_point is None or dtype not in BYTE_RANGES:
            return None
        is_finite = not isinstance(scale, float) or 0 < scale < np.inf
        return (scale, zero_point, dtype) if is_finite else None

    def _number(self, expr: Any) -> Any:
        value = value_of(expr, self.function.value)
        if value is None:
            return expr if isinstance(expr, R.Var) and shape_of(expr) == () else None
        is_one = value.size > 0 and bool(np.all(value == value.flat[0]))
        return float(value.flat[0]) if is_one else None

    def parameters(self, step: Step) -> tuple[Any, Any, str]:
        """Return scale and zero point as tensors of no axes, and the dtype."""
        scale, zero_point, dtype = step
        if isinstance(scale, float):
            scale = R.const(scale, "float32")
        if isinstance(zero_point, float):
            zero_point = R.const(int(zero_point), dtype)
        return self.visit_expr(scale), self.visit_expr(zero_point), dtype

    def with_data(self, call: Any, data: list[Any]) -> Any:
        """Return a call that takes elements of other tensors."""
        emitted = [self.builder_.emit(one) if isinstance(one, R.Call) else one for one in data]
        first = R.Tuple(emitted) if call.op.name == _CONCAT else emitted[0]
        return R.Call(call.op, [first, *call.args[1:]], call.attrs)


@mutator
class _Quantizes(_Mover):
    """Moves a quantize before what only it reads."""

    names = (QUANTIZE,)

    def visit_call_(self, call: Any) -> Any:
        """Replace a quantize."""
        step = self.step_of(call) if named(call, QUANTIZE) is not None else None
        if step is None or dtype_of(call.args[0]) != "float32":
            return super().visit_call_(call)
        return self._quantized(call.args[0], call, step)

    def _quantized(self, expr: Any, reader: Any, step: Step) -> Any:
        """Return what a quantize makes of an operand of the call `reader`."""
        value = self.function.value(expr)
        if named(value, DEQUANTIZE) is not None and self.step_of(value) == step:
            return self.visit_expr(value.args[0])
        data = _data(self.function.only_read_by(expr, reader))
        if not data or value.op.name == _SLICE:
            scale, zero_point, dtype = self.parameters(step)
            return R.op.quantize(self.visit_expr(expr), scale, zero_point, -1, dtype)
        return self.with_data(value, [self._quantized(one, value, step) for one in data])


@mutator
class _Dequantizes(_Mover):
    """Moves a dequantize behind what reads it."""

    names = (DEQUANTIZE,)

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.moved: dict[Any, tuple[Any, Step]] = {}

    def visit_call_(self, call: Any) -> Any:
        """Replace a call that takes elements of dequantized tensors."""
        data = _data(call)
        found = [one for one in map(self._bytes, data) if one is not None]
        is_same = len(found) == len(data) and len({step for _, step in found}) == 1
        if not is_same or self._is_read_by_functions(call):
            return super().visit_call_(call)
        step = found[0][1]
        moved = self.builder_.emit(self.with_data(call, [tensor for tensor, _ in found]))
        self.moved[call] = moved, step
        scale, zero_point, _ = self.parameters(step)
        return R.op.dequantize(moved, scale, zero_point)

    def _is_read_by_functions(self, call: Any) -> bool:
        """Return whether functions of TIR read the result of a call.

        They may state its sizes by other expressions than a dequantize in front of them.
        """
        variables = (var for var, value in self.function.values.items() if value.same_as(call))
        readers = [reader for var in variables for _, reader in self.function.readers[var]]
        return any(named(reader, "relax.call_tir") is not None for reader in readers)

    def _bytes(self, expr: Any) -> tuple[Any, Step] | None:
        """Return the bytes that a value is dequantized from, and how."""
        value = self.function.value(expr)
        if named(value, DEQUANTIZE) is None:
            return self.moved.get(value)
        step = self.step_of(value) if dtype_of(value) == "float32" else None
        return None if step is None else (self.visit_expr(value.args[0]), step)


def _data(call: Any) -> list[Any]:
    """Return the tensors of which a call takes elements; none of other calls."""
    if named(call, _CONCAT) is not None:
        return list(call.args[0].fields) if isinstance(call.args[0], R.Tuple) else []
    if named(call, _RESIZE) is not None:
        is_nearest = str(call_attr(call, "method")) == "nearest_neighbor"
        return [call.args[0]] if is_nearest and not str(call_attr(call, "out_dtype") or "") else []
    known = named(call, *RESHAPES, *_POOLS, PERMUTE, _SLICE)
    return [] if known is None else [call.args[0]]
