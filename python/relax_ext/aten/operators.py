# SPDX-License-Identifier: Apache-2.0
"""The allow-list of imported operators, each of which tests compare with PyTorch by value.

=========================  =====================================================================
:mod:`.arithmetic`         operators of two elements, comparisons
:mod:`.functions`          functions of one element, activations, limits
:mod:`.shapes`             views, concatenation, tensors of one value
:mod:`.slices`             slices, selections, padding, and their gradients
:mod:`.reductions`         sums, means, variances, extremes and their places, softmax
:mod:`.convolutions`       convolutions and their gradients
:mod:`.norms`              batch, group and layer normalization
:mod:`.pools`              pooling and its gradients
:mod:`.resizes`            resizes and their gradients
:mod:`.indexing`           scatters of one element of each row
:mod:`.attention`          attention that is not decomposed
:mod:`.losses`             losses of classes
=========================  =====================================================================

Other operators stay in PyTorch.  So do random operators; operators that read at indices
(``embedding``, ``gather``, ``index``), because PyTorch checks the indices (but see
:mod:`relax_ext.torch.gathers`); and operators for which TVM orders NaN differently (``sort``,
``topk``).
"""

from __future__ import annotations

from . import (
    arithmetic,
    attention,
    convolutions,
    functions,
    indexing,
    losses,
    norms,
    pools,
    reductions,
    resizes,
    shapes,
    slices,
)
from .calls import Call, Converter

_MODULES = (
    arithmetic,
    functions,
    shapes,
    slices,
    reductions,
    convolutions,
    norms,
    pools,
    resizes,
    indexing,
    attention,
    losses,
)

CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys(("mm.default", "bmm.default", "addmm.default"), Call.stock),
    **{name: convert for module in _MODULES for name, convert in module.converters().items()},
}
"""The converter of each operator by name and overload."""
