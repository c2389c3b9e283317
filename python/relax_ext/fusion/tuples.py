# SPDX-License-Identifier: Apache-2.0
"""Fusion of what reads items of several tuples, where TVM mixes up the parameters.

``FuseOps`` replaces a tuple parameter by the items that a function reads.  It finds each tuple at
the place that it had before the items of others were inserted, in the order of a hash table.
Where it reads one item of each tuple, no place changes.
"""

from __future__ import annotations

from typing import Any

from tvm.relax.expr_functor import PyExprMutator, mutator

from topi_ext.compat import relax, type_of

R = relax()


def fuse_ops(module: Any) -> Any:
    """Run TVM's ``FuseOps``, with a tuple for each item where items of several tuples meet."""
    fused = R.transform.FuseOps()(module)
    if not any(_mixes_up(func) for _, func in fused.functions_items()):
        return fused
    return R.transform.CanonicalizeBindings()(R.transform.FuseOps()(_with_a_tuple_each(module)))


def _mixes_up(func: Any) -> bool:
    """Return whether a call in `func` takes several tuples, and several items of one."""
    blocks = func.body.blocks if isinstance(func, R.Function) else []
    values = {one.var: one.value for block in blocks for one in block.bindings}
    for value in values.values():
        args = value.args if isinstance(value, R.Call) else []
        items = [values[arg] for arg in args if isinstance(values.get(arg), R.TupleGetItem)]
        whole = [arg for arg in args if hasattr(type_of(arg), "fields")]
        if items and (whole or 1 < len({item.tuple_value for item in items}) < len(items)):
            return True
    return False


def _with_a_tuple_each(module: Any) -> Any:
    """Rename a tuple before each item of it; no operator is fused across a renaming."""
    renamer = _Renamer(module)
    for name, func in list(module.functions_items()):
        if isinstance(func, R.Function):
            renamer.builder_.update_func(name, renamer.visit_expr(func))
    return renamer.builder_.get()


@mutator
class _Renamer(PyExprMutator):  # type: ignore[misc]
    def visit_tuple_getitem_(self, item: Any) -> Any:
        """Read an item of another variable for the same tuple."""
        renamed = self.builder_.emit(self.visit_expr(item.tuple_value))
        return R.TupleGetItem(renamed, item.index)
