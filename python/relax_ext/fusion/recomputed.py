# SPDX-License-Identifier: Apache-2.0
"""Rematerialization: what is cheap to compute is computed by each operator that reads it.

TVM fuses an element-wise operator with its reader where there is one, and stores its result where
there are several: the deviations from a mean, which variance and norm read, or a masked gradient,
which three operators of a norm's gradient read.  Storing takes two passes over memory, one for the
line that is fetched first, and each reader one.  Without the store each reader takes one pass for
each operand.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm.relax.expr_functor import PyExprMutator, mutator

from topi_ext.compat import relax, with_replaced

from ..ir import are_same, shape_of
from .patterns import Function

R = relax()

_ELEMENT_WISE, _FUSED = (0, 1), (0, 1, 3)
"""TVM's patterns of operators of equal and of broadcast shapes, and with reductions.  Others move
elements: a reshape of what is stored is free.
"""

_COSTLY = ("Call", "Div", "FloorDiv", "FloorMod")
"""Kinds of expressions that take longer than to read their result."""


def recompute(module: Any) -> Any:
    """Give each reader of a cheap value a copy, where that moves fewer bytes.

    Operators are calls of functions with TVM's pattern, as ``AnnotateTIROpPattern`` leaves them.
    """
    patterns = {
        name: int(func.attrs["op_pattern"])
        for name, func in module.functions_items()
        if "op_pattern" in (func.attrs or {})
    }
    copier = _Copier(module)
    for name, func in list(module.functions_items()):
        if isinstance(func, R.Function):
            copier.values = _Values(module, Function.of(func), patterns).recomputed()
            if copier.values:
                found = R.analysis.remove_all_unused(copier.visit_expr(func))
                copier.builder_.update_func(name, found)
    return copier.builder_.get()


class _Values:
    """The values of a function, and which of them are recomputed."""

    def __init__(self, module: Any, function: Function, patterns: dict[Any, int]) -> None:
        self._module = module
        self._function = function
        self._patterns = patterns

    def recomputed(self) -> dict[Any, Any]:
        """Return the values that are recomputed, by variable, the last one first.

        What only recomputed values read is computed as often as they are.
        """
        found: dict[Any, int] = {}
        for var in reversed(self._function.values):
            times = sum(found.get(one, 1) for one, _ in self._function.readers[var])
            if times > 1 and self._is_cheap(var) and self._moves_less(var, times):
                found[var] = times
        return {var: self._function.values[var] for var in found}

    def _pattern(self, value: Any) -> int | None:
        """Return the pattern of the function that a value is a call of."""
        is_call = isinstance(value, R.Call) and len(value.args) > 1
        return self._patterns.get(value.args[0]) if is_call else None

    def _is_cheap(self, var: Any) -> bool:
        """Return whether TVM would fuse a value with each of its readers."""
        value = self._function.value(var)
        if not isinstance(var, R.DataflowVar) or self._pattern(value) not in _ELEMENT_WISE:
            return False
        if any(self._pattern(one) not in _FUSED for _, one in self._function.readers[var]):
            return False
        costly: list[Any] = []
        body = self._module[value.args[0]].body
        with_replaced(body, dict.fromkeys(_COSTLY, costly.append))
        return not costly

    def _moves_less(self, var: Any, times: int) -> bool:
        reads = self._reads(var)
        return reads * times < reads + 2 + times

    def _reads(self, var: Any) -> int:
        """Return the number of tensors of about the size of a value that it is computed from."""
        count = 0
        for operand in self._function.value(var).args[1].fields:
            if not _is_smaller(shape_of(operand), shape_of(var)):
                readers = self._function.readers.get(operand, ())
                is_fused = len(readers) == 1 and self._is_cheap(operand)
                count += self._reads(operand) if is_fused else 1
        return count


def _is_smaller(sizes: Any, than: Any) -> bool:
    """Return whether a tensor is known to have less than half of the elements of another."""
    if sizes is None or than is None or are_same(sizes, than):
        return False
    if all(isinstance(size, int) for size in (*sizes, *than)):
        return 2 * prod(sizes) < prod(than)
    return len(sizes) < len(than)


@mutator
class _Copier(PyExprMutator):  # type: ignore[misc]
    """Emits values again before each reader."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.values: dict[Any, Any] = {}
        self._copies: dict[Any, Any] = {}

    def visit_call_(self, call: Any) -> Any:
        """Read copies of recomputed values."""
        operands = [one for one in R.analysis.free_vars(call) if one in self.values]
        copies = {one: self.builder_.emit(self.visit_expr(self.values[one])) for one in operands}
        self._copies = copies
        return super().visit_call_(call)

    def visit_dataflow_var_(self, var: Any) -> Any:
        """Return the copy for the call that is visited."""
        return self._copies[var] if var in self._copies else super().visit_dataflow_var_(var)
