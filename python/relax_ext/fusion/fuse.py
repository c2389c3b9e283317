# SPDX-License-Identifier: Apache-2.0
"""The pass that puts what follows a convolution, a matrix product, a softmax or a norm into its
kernel, and packs constant weights; see :mod:`.chains`."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax.expr_functor import PyExprMutator, mutator

from topi_ext.compat import relax

from .affine import merge_affine
from .attention import read as read_attention
from .chains import Begin, Chain, chains_of, products_and_rows, transposes
from .concat import with_concats
from .constants import parameters_of_load
from .match import lowered

R = relax()

EXPECTED = "topi_ext.expected_sizes"
"""Attribute of functions: values that symbolic sizes are expected to have, by name.  Kernels are
chosen for a sixteenth of their positions and more; they are right for all."""


def fuse_kernels(module: Any, packs_parameters: bool = False) -> Any:
    """Lower convolutions and matrix products of `module` together with the element-wise operators
    behind them, and with concatenations of their results where kernels write these.

    Constant weights are packed by a call whose operands are constants, which ``FoldConstant``
    computes at compile time.  What has no kernel of ours is left as it is.  Attention comes first,
    whose products and softmax are kernels of their own otherwise, and transposes that no product
    has taken in come last.

    Parameters
    ----------
    module : tvm.IRModule
    packs_parameters : bool
        Whether weights are also packed by a call of their own where parameters behind the attribute
        ``num_input`` alone decide them.  ``LiftTransformParams`` has to move these calls out.

    Returns
    -------
    tvm.IRModule
    """
    for begin in (read_attention, products_and_rows, transposes):
        fuser = _Fuser(module, begin, packs_parameters)
        for name, func in list(module.functions_items()):
            if isinstance(func, R.Function):
                fuser.rewrite(name, func)
        module = fuser.builder_.get()
    return module


@mutator
class _Fuser(PyExprMutator):  # type: ignore[misc]
    """Replaces the last call of each chain; the others are dead then."""

    def __init__(self, module: Any, begin: Begin, packs_parameters: bool) -> None:
        super().__init__(module)
        self.begin = begin
        self.packs_parameters = packs_parameters
        self.parameters: set[Any] = set()
        self.chains: dict[Any, Chain] = {}
        self.expected: dict[str, int] = {}

    def rewrite(self, name: Any, func: Any) -> None:
        """Put the fused function into the builder's module."""
        chains = chains_of(func, self.begin)
        for chain in chains.values():
            merge_affine(chain)
        self.chains = with_concats(func, chains)
        self.parameters = parameters_of_load(func) if self.packs_parameters else set()
        expected = (func.attrs or {}).get(EXPECTED, {})
        self.expected = {str(name): int(size) for name, size in expected.items()}
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
            operand if isinstance(operand, np.ndarray) else self._emitted(operand)
            for operand in chain.operands
        ]
        is_packed = chain.anchor.has_weight and chain.match.inputs[1] in self.parameters
        result = lowered(
            self.builder_, match, chain.anchor, chain.steps, operands, is_packed, self.expected
        )
        for view in chain.views:
            result = R.Call(view.op, [self.builder_.emit(result), *view.args[1:]], view.attrs)
        return result

    def _emitted(self, operand: Any) -> Any:
        """Return the operand of a step, which may be computed for it."""
        operand = self.visit_expr(operand)
        return self.builder_.emit(operand) if isinstance(operand, R.Call) else operand
