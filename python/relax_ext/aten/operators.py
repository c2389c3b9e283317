# SPDX-License-Identifier: Apache-2.0
"""The table of imported operators, each of which tests compare with PyTorch by value.

=========================  =====================================================================
:mod:`.arithmetic`         operators of two elements, comparisons
:mod:`.functions`          functions of one element, activations, limits
:mod:`.shapes`             views, concatenation, tensors of one value
:mod:`.slices`             slices, selections, padding, and their gradients
:mod:`.reductions`         sums, means, variances, extremes and their places, softmax
:mod:`.products`           products of matrices
:mod:`.convolutions`       convolutions and their gradients
:mod:`.norms`              batch, group, layer and instance normalization
:mod:`.pools`              pooling and its gradients
:mod:`.resizes`            resizes and their gradients, samples of images
:mod:`.indexing`           scatters of one element of each row, lookups
:mod:`.attention`          attention that is not decomposed
:mod:`.losses`             losses of classes
:mod:`.quantized`          quantized layers
=========================  =====================================================================

By ``torch.compile`` other operators stay in PyTorch.  So do random operators; operators that read
at indices (``embedding``, ``gather``, ``index``), because PyTorch checks the indices (but see
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
    products,
    quantized,
    reductions,
    resizes,
    shapes,
    slices,
)
from .calls import Converter

_OF_GRAPHS = (
    arithmetic,
    functions,
    shapes,
    slices,
    reductions,
    products,
    convolutions,
    norms,
    pools,
    resizes,
    indexing,
    quantized,
)

CONVERTERS: dict[str, Converter] = {
    name: convert for module in _OF_GRAPHS for name, convert in module.converters().items()
}
"""The converter of each operator by name and overload, as graphs of ``torch.compile`` have them."""

_OF_PROGRAMS = (*_OF_GRAPHS, attention, losses)

IMPORTED: dict[str, Converter] = {
    **CONVERTERS,
    **{name: convert for module in _OF_PROGRAMS for name, convert in module.imported().items()},
}
"""The same for imported programs, which may be whole, and of which nothing runs in PyTorch."""
