# SPDX-License-Identifier: Apache-2.0
"""The pass that puts what follows a convolution, a matrix product, a softmax or a norm into its
kernel, and packs constant weights; see :mod:`.chains`."""

from __future__ import annotations

from typing import Any

import numpy as np

from topi_ext.compat import relax

from .chains import Begin, Chain, chains_of, products_and_rows, transposes
from .match import lowered

R = relax()


def fuse_kernels(module: Any) -> Any:
    """Lower convolutions and matrix products of `module` together with the element-wise operators
    behind them.

    Constant weights are packed by a call whose operands are constants, which ``FoldConstant``
    computes at compile time.  What has no kernel of ours is left as it is.  Transposes that no
    product has taken in come last.

    Parameters
    ----------
    module : tvm.IRModule

    Returns
    -------
    tvm.IRModule
    """
    for begin in (products_and_rows, transposes):
        mutator = _Fuser(module, begin)
        for name, func in list(module.functions_items()):
            if isinstance(func, R.Function):
                mutator.rewrite(name, func)
        module = mutator.builder_.get()
    return module


@R.expr_functor.mutator
class _Fuser(R.PyExprMutator):
    """Replaces the last call of each chain; the others are dead then."""

    def __init__(self, module: Any, begin: Begin) -> None:
        super().__init__(module)
        self.begin = begin
        self.chains: dict[Any, Chain] = {}

    def rewrite(self, name: Any, func: Any) -> None:
        """Put the fused function into the builder's module."""
        self.chains = chains_of(func, self.begin)
        if self.chains:
            fused = R.analysis.remove_all_unused(self.visit_expr(func))
            self.builder_.update_func(name, fused)

    def visit_call_(self, call: Any) -> Any:
        """Lower a chain where `call` ends one."""
        chain = self.chains.get(call)
        if chain is None:
            return super().visit_call_(call)
        match = chain.match._replace(inputs=tuple(map(self.visit_expr, chain.match.inputs)))
        operands = [
            operand if isinstance(operand, np.ndarray) else self.visit_expr(operand)
            for operand in chain.operands
        ]
        result = lowered(self.builder_, match, chain.anchor, chain.steps, operands)
        for view in chain.views:
            result = R.Call(view.op, [self.builder_.emit(result), *view.args[1:]], view.attrs)
        return result
