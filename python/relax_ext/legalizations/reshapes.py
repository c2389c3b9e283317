# SPDX-License-Identifier: Apache-2.0
"""Reshapes with symbolic sizes, which TVM copies element by element with divisions.

TVM numbers the elements of the result and divides the number by the sizes of the operand.  It does
not recognize this function as a reshape where the sizes are symbolic, and fuses it with no other.

Here axes of both shapes are put into the smallest groups of equal products, and only the indices
of a group follow from each other::

    (n, 64, h, w) -> (n, 8, 8, h, w)        x[n, 8 * i + j, h, w]
    (n, c, h * w) -> (n, c, h, w)           x[n, c, h * w.size + w]

Functions without divisions by symbolic sizes are fused with others.  A reshape that is not fused
becomes a view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from tvm.relax.expr_functor import PyExprMutator, mutator

from topi_ext.compat import known_shape, op_attr, relax, same_size, tensor_type_of

R = relax()

_MARK = "topi_ext.reshape"
"""Attribute of functions that reshape their only operand."""

Sizes = Sequence[Any]


def by_groups(bb: Any, call: Any) -> Any:
    """Lower a reshape to or from symbolic sizes by groups of axes."""
    given, wanted = (
        known_shape(type_.shape) for type_ in map(tensor_type_of, (call.args[0], call))
    )
    if given is None or wanted is None or (_are_known(given) and _are_known(wanted)):
        return op_attr(call.op.name, "FLegalize")(bb, call)
    attrs = {"primfunc_name_hint": "reshape", "primfunc_attrs": {_MARK: 1}}
    return bb.call_te(_reshaped, call.args[0], R.ShapeExpr(wanted), **attrs)


def of_equal_sizes(bb: Any, tensor: Any, sizes: Sizes) -> Any:
    """Return a tensor whose sizes are stated by other expressions, which are known to be equal.

    A cast would do (``match_cast``), but TVM's ``CanonicalizeBindings`` replaces a symbol by the
    expression that it is matched with, without end if the symbol occurs there.
    """
    attrs = {"primfunc_name_hint": "reshape", "primfunc_attrs": {_MARK: 1}}
    return bb.emit_te(_restated, tensor, R.ShapeExpr(sizes), **attrs)


def as_views(module: Any) -> Any:
    """Replace calls of functions that only reshape by views.

    A result of a function is a copy of the view, so that it shares no memory with a parameter.
    """
    viewer = _Viewer(module)
    for name, func in list(module.functions_items()):
        if isinstance(func, R.Function):
            viewer.results = set(_results(func))
            viewer.builder_.update_func(name, viewer.visit_expr(func))
    return R.transform.DeadCodeElimination()(viewer.builder_.get())


@mutator
class _Viewer(PyExprMutator):  # type: ignore[misc]
    """Replaces calls of marked functions."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        marked = (name for name, func in module.functions_items() if _MARK in (func.attrs or {}))
        self.marked = set(marked)
        self.results: set[Any] = set()

    def visit_call_(self, call: Any) -> Any:
        """Return the view that a call makes, or its copy."""
        if not call.args or call.args[0] not in self.marked:
            return super().visit_call_(call)
        tensor = self.visit_expr(call.args[1].fields[0])
        view = R.op.reshape(tensor, R.ShapeExpr(known_shape(tensor_type_of(call).shape)))
        if call not in self.results:
            return view
        return self.builder_.call_te(_copied, self.builder_.emit(view), primfunc_name_hint="copy")


def _results(func: Any) -> Iterator[Any]:
    """Yield the values that may leave a function: those of variables outside of dataflow."""
    for block in func.body.blocks:
        for binding in block.bindings:
            if not isinstance(binding.var, R.DataflowVar):
                yield binding.value


def _are_known(sizes: Sizes) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _copied(x: Any) -> Any:
    from tvm import te

    return te.compute(x.shape, lambda *index: x(*index), name="copy")


def _restated(x: Any, shape: Any) -> Any:
    from tvm import te

    return te.compute(shape, lambda *index: x(*index), name="T_reshape")


def _reshaped(x: Any, shape: Any) -> Any:
    from tvm import te

    groups = list(_groups(known_shape(R.ShapeExpr(x.shape)), known_shape(R.ShapeExpr(shape))))

    def element(*index: Any) -> Any:
        place: list[Any] = [0] * len(x.shape)
        for given, wanted in groups:
            number: Any = 0
            for axis in wanted:
                number = number * shape[axis] + index[axis]
            for axis in reversed(given[1:]):
                place[axis] = number % x.shape[axis]
                number //= x.shape[axis]
            place[given[0]] = number
        return x(*place)

    return te.compute(shape, element, name="T_reshape")


def _groups(given: Sizes, wanted: Sizes) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the smallest groups of axes of two shapes, from the first, that have equal products.

    Axes of one element are in no group.  Axes whose products are not known to be equal are one
    group.
    """
    mine, theirs = (
        [axis for axis, size in enumerate(sizes) if not same_size(size, 1)]
        for sizes in (given, wanted)
    )
    while mine and theirs:
        ends = ((a, b) for a in range(1, len(mine) + 1) for b in range(1, len(theirs) + 1))
        for a, b in sorted(ends, key=sum):
            products = (prod(given[axis] for axis in mine[:a]), prod(wanted[i] for i in theirs[:b]))
            if same_size(*products) or (a, b) == (len(mine), len(theirs)):
                yield mine[:a], theirs[:b]
                mine, theirs = mine[a:], theirs[b:]
                break
