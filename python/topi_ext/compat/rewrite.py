# SPDX-License-Identifier: Apache-2.0
"""Rewriting of finished functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from .builder import reads_llvm, uses_var
from .ir import buffer_of_region, simplify
from .versions import StringImm, s_tir, tir, tvm

_NAMESPACE = tir.__name__.rpartition(".")[2]
_NAMESPACES = {_NAMESPACE, "prim"}
"""Namespaces of intrinsics; since TVM 0.27, ``prim`` has those that simplification knows."""


def intrinsic_name(call: Any) -> str:
    """Return the name of one of TVM's math intrinsics, such as ``exp``; empty for other calls."""
    namespace, _, name = str(getattr(call.op, "name", "")).rpartition(".")
    return name if namespace in _NAMESPACES else ""


def scalar_dtype(expr: Any) -> str:
    """Return the dtype of an expression of numbers."""
    return str(expr.dtype if hasattr(expr, "dtype") else expr.ty.dtype)


def same_expression(a: Any, b: Any) -> bool:
    """Return whether two expressions of Relax's TVM have the same structure, variables included."""
    from tvm_ffi import structural_equal

    return bool(structural_equal(a, b))


def is_number(expr: Any) -> bool:
    """Return whether an expression is a floating-point constant."""
    return isinstance(expr, tir.FloatImm)


def extern_operands(expr: Any, name: str) -> Any:
    """Return the operands of a call of the external function `name`; None of other expressions."""
    is_extern = hasattr(expr, "args") and intrinsic_name(expr) == "call_pure_extern"
    if not is_extern or str(expr.args[0].value) != name:
        return None
    return tuple(expr.args[1:])


def conditional_parts(expr: Any) -> Any:
    """Return the condition and both values of an ``if_then_else``; None of other expressions."""
    is_call = hasattr(expr, "args") and intrinsic_name(expr) == "if_then_else"
    return tuple(expr.args) if is_call else None


def with_replaced(body: Any, replacements: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Replace nodes in statements of Relax's TVM, the innermost first.

    Parameters
    ----------
    body : Stmt
    replacements : mapping of str to callable
        ``replacement(node)`` by kind of node, such as ``Call`` or ``Max``; None keeps the node.
    """
    if hasattr(tir, "Call"):  # before TVM 0.26

        def replaced(node: Any) -> Any:
            return replacements[type(node).__name__](node)

        kinds = [f"{_NAMESPACE}.{kind}" for kind in replacements]
        return tir.stmt_functor.ir_transform(body, None, replaced, kinds)
    from tvm_ffi import structural_map

    def or_itself(replacement: Callable[[Any], Any], node: Any) -> Any:
        made = replacement(node)
        return node if made is None else made

    def node_class(kind: str) -> Any:
        return next(getattr(room, kind) for room in (tir, s_tir, tvm.ir) if hasattr(room, kind))

    entries = [
        (node_class(kind), partial(or_itself, replacement))
        for kind, replacement in replacements.items()
    ]
    return structural_map(body, entries)


def with_initial_values(body: Any, replacement: Callable[[Any], Any]) -> Any:
    """Replace what reductions begin with, in blocks of Relax's TVM that are not decomposed.

    Parameters
    ----------
    body : Stmt
    replacement : callable
        ``replacement(value)``; None keeps the value.
    """

    def replaced(block: Any) -> Any:
        store = block.init
        value = replacement(store.value) if isinstance(store, tir.BufferStore) else None
        if value is None:
            return None
        init = tir.BufferStore(store.buffer, value, store.indices)
        return type(block)(
            block.iter_vars, block.reads, block.writes, block.name_hint, block.body, init,
            block.alloc_buffers, block.match_buffers, block.annotations,
        )  # fmt: skip

    return with_replaced(body, {"SBlock": replaced})


def with_updates(body: Any, annotation: str, replacement: Callable[[Any, Any], Any]) -> Any:
    """Replace what annotated reduction blocks of Relax's TVM combine, and remove the annotation.

    Parameters
    ----------
    body : Stmt
    annotation : str
    replacement : callable
        ``replacement(block, value)`` returns the element that is combined in place of `value`.
    """

    def replaced(block: Any) -> Any:
        if annotation not in block.annotations:
            return None
        store = block.body
        combined = type(store.value)(store.value.a, replacement(block, store.value.b))
        update = tir.BufferStore(store.buffer, combined, store.indices)
        annotations = {key: block.annotations[key] for key in block.annotations}
        del annotations[annotation]
        return type(block)(
            block.iter_vars, block.reads, block.writes, block.name_hint, update, block.init,
            block.alloc_buffers, block.match_buffers, annotations,
        )  # fmt: skip

    return with_replaced(body, {"SBlock": replaced})


def with_split_loop(body: Any, loop: Any, count: Any, length: Any) -> Any:
    """Split a loop of Relax's TVM into `count` times `length` iterations, which may be symbolic.

    There are at least as many as before; the further ones are not guarded.

    Parameters
    ----------
    body : Stmt
    loop : For
        Around one block, of which one variable has the value of the loop's variable.
    count, length : PrimExpr
    """
    variable, zero = loop.loop_var, loop.min
    dtype = scalar_dtype(variable)
    outer, inner = (tir.Var(f"{variable.name}_{number}", dtype) for number in range(2))

    def bound(realize: Any) -> Any:
        values = [
            outer * length + inner if value.same_as(variable) else value
            for value in realize.iter_values
        ]
        return type(realize)(values, realize.predicate, realize.block)

    def split(node: Any) -> Any:
        if not node.loop_var.same_as(variable):
            return None
        within = tir.For(inner, zero, length, node.kind, node.body)
        return tir.For(outer, zero, count, node.kind, within)

    return with_replaced(body, {"SBlockRealize": bound, "For": split})


class _MergedAxes(NamedTuple):
    """Two variables of a block, and the one in place of both: ``[.., i, j]`` is ``[.., 0, both]``.

    Attributes
    ----------
    first, second : IterVar
    both : Var
    """

    first: Any
    second: Any
    both: Any

    @property
    def axis(self) -> Any:
        """Return the iteration variable in place of both."""
        first, second = self.first.dom, self.second.dom
        return type(self.first)(
            (first.min, first.extent * second.extent), self.both, self.first.iter_type
        )

    def indices(self, given: Any) -> list[Any]:
        """Return indices with the merged variable."""
        merged = list(given)
        for axis, value in enumerate(given):
            if value.same_as(self.second.var):
                merged[axis - 1 : axis + 1] = [self.first.dom.min, self.both]
        return merged

    def region(self, stated: Any) -> Any:
        """Return a region that a block reads or writes."""
        pairs = zip(self.indices([each.min for each in stated.region]), stated.region)
        ranges = [type(each).from_min_extent(begin, each.extent) for begin, each in pairs]
        return tir.BufferRegion(buffer_of_region(stated), ranges)

    def store(self, given: Any) -> Any:
        """Return a statement, or None where that uses the two variables elsewhere."""
        load = "TensorLoad" if hasattr(tvm.ir, "TensorLoad") else "BufferLoad"

        def read(node: Any) -> Any:
            return tir.BufferLoad(buffer_of_region(node), self.indices(node.indices))

        value = with_replaced(tir.Evaluate(given.value), {load: read}).value
        indices = self.indices(given.indices)
        parts, axes = (value, *indices), (self.first, self.second)
        if any(uses_var(part, axis.var) for part in parts for axis in axes):
            return None
        return tir.BufferStore(given.buffer, value, indices)


def with_merged_loops(body: Any, block: Any, loops: tuple[Any, Any], first: int) -> Any:
    """Merge two nested loops of Relax's TVM around a block into one over both extents.

    Parameters
    ----------
    body : Stmt
    block : SBlock
        In its operands and its result, two of its variables are neighbouring indices, and the
        second one's values are all elements of an axis.  The axis of the first one is then used as
        if it had one element.
    loops : tuple of For
        The outer and the inner one, whose variables those of the block are.
    first : int
        Number of the first one of the two variables; the second one is the next.

    Returns
    -------
    Stmt or None
        None where the block has the two variables elsewhere, or is more than one statement.
    """
    outer, inner = loops
    one, other = block.iter_vars[first : first + 2]
    name, dtype = one.var.name, scalar_dtype(one.var)
    loop_var = tir.Var(f"{name}_all", dtype)
    axes = _MergedAxes(one, other, tir.Var(f"{name}_both", dtype))
    stores = [block.body] if block.init is None else [block.body, block.init]
    made = [axes.store(one) if isinstance(one, tir.BufferStore) else None for one in stores]
    if None in made:
        return None
    variables, both = list(block.iter_vars), slice(first, first + 2)
    variables[both] = [axes.axis]
    reads, writes = ([axes.region(one) for one in every] for every in (block.reads, block.writes))
    merged = type(block)(
        variables, reads, writes, block.name_hint, made[0], made[1] if len(made) > 1 else None,
        block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip

    def bound(realize: Any) -> Any:
        values = list(realize.iter_values)
        if not any(value.same_as(inner.loop_var) for value in values):
            return None
        values[both] = [loop_var]
        return type(realize)(values, realize.predicate, merged)

    def loop(node: Any) -> Any:
        if node.loop_var.same_as(inner.loop_var):
            return node.body
        if not node.loop_var.same_as(outer.loop_var):
            return None
        return tir.For(loop_var, node.min, outer.extent * inner.extent, node.kind, node.body)

    return with_replaced(body, {"SBlockRealize": bound, "For": loop})


def with_choice(condition: Any, func: Any, other: Any) -> Any:
    """Return the function that does what `func` does where `condition` is true, else `other`.

    Both have the same parameters, a root block and no other attributes than `other`.
    """
    root, second = _with_own_definitions(func, other).block, other.body.block
    either = tir.IfThenElse(condition, root.body, second.body)
    buffers = [*root.alloc_buffers, *second.alloc_buffers]
    block = type(root)([], [], [], root.name_hint, either, alloc_buffers=buffers)
    return other.with_body(type(func.body)([], tir.const(True, "bool"), block))


def _with_own_definitions(func: Any, other: Any) -> Any:
    """Return the body of a function for the parameters of another one, with variables and buffers
    of its own: loops that both have in common may be defined once only.
    """
    own = s_tir.renew_defs(func)
    pairs = list(zip(own.params, other.params))
    if hasattr(own, "buffer_map"):  # before TVM 0.26
        buffers = dict(other.buffer_map.items())
        return own.specialize({new: buffers.get(old, old) for new, old in pairs}).body
    shapes = ((getattr(each, "shape", ()) for each in pair) for pair in pairs)  # or a size
    sizes = [pair for both in shapes for pair in zip(*both)]
    body = own.body
    # First the parameters: where their sizes are replaced, TVM 0.26 makes other parameters.
    for group in (pairs, [pair for pair in sizes if not is_number(pair[0])]):
        body = with_values(body, group)
    return body


def _replaced_variable(pairs: list[tuple[Any, Any]], variable: Any) -> Any:
    return next((old for new, old in pairs if variable.same_as(new)), None)


def with_values(expr: Any, values: list[tuple[Any, Any]]) -> Any:
    """Return an expression or a statement of Relax's TVM with variables replaced.

    Parameters
    ----------
    expr : PrimExpr, Stmt or int
    values : list of tuple
        Each variable and what replaces it.
    """
    if isinstance(expr, int):
        return expr
    is_statement = isinstance(expr, tir.Stmt)
    body = expr if is_statement else tir.Evaluate(expr)
    made = with_replaced(body, {"Var": partial(_replaced_variable, values)})
    return made if is_statement else made.value


def size_at(size: Any, symbols: Mapping[str, int]) -> int | None:
    """Return the value of a size for values of symbols by name, None if it has other symbols."""
    if isinstance(size, int):
        return size
    found = ((one, symbols.get(one.name)) for one in tir.analysis.undefined_vars(size))
    values = [(one, tir.IntImm(scalar_dtype(one), n)) for one, n in found if n is not None]
    value = simplify(with_values(size, values))
    return value if isinstance(value, int) else None


def takes_llvm(func: Any) -> bool:
    """Return whether a function has a root block, where :func:`importing_llvm` puts LLVM text that
    this TVM reads.
    """
    return reads_llvm() and hasattr(func.body, "block")


def importing_llvm(body: Any, text: str) -> Any:
    """Return the body of a function with a root block, which may call the functions that `text`, in
    LLVM's language, defines.
    """
    root, zero = body.block, tir.IntImm("int32", 0)
    inside = tir.AttrStmt(zero, "pragma_import_llvm", StringImm(text), root.body)
    block = type(root)(
        [], [], [], root.name_hint, inside, alloc_buffers=root.alloc_buffers,
        annotations=root.annotations,
    )  # fmt: skip
    return type(body)([], tir.const(True, "bool"), block)
