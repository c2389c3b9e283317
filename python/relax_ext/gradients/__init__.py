# SPDX-License-Identifier: Apache-2.0
"""Gradients of the operators around convolutions, for ``relax.transform.Gradient``.

======================  ==================================================================
:mod:`.activations`     relu, leaky relu, prelu, gelu, softplus, selu
:mod:`.arithmetic`      powers, limits, remainders, functions of one element, conversions
:mod:`.attention`       attention, with a bias too
:mod:`.constants`       what has no gradient; dropout is refused
:mod:`.indexing`        gathers and scatters
:mod:`.norms`           batch, layer, group, instance and RMS norm
:mod:`.pooling`         max and average pooling
:mod:`.products`        einsum and outer products
:mod:`.reductions`      extremes, means, variances, cumulative sums
:mod:`.resizing`        resizes and adaptive average pooling
:mod:`.shapes`          slices, padding, repetitions, stacks
======================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import (
    activations,
    arithmetic,
    attention,
    constants,
    indexing,
    norms,
    pooling,
    products,
    reductions,
    resizing,
    shapes,
)
from .parts import registrable

__all__ = ["GRADIENTS"]

_MODULES = (
    activations,
    arithmetic,
    attention,
    constants,
    indexing,
    norms,
    pooling,
    products,
    reductions,
    resizing,
    shapes,
)

GRADIENTS: Mapping[str, Callable[..., list[Any]]] = {
    name: registrable(rule)
    for name, rule in sorted(item for module in _MODULES for item in module.RULES.items())
}
"""The attribute ``FPrimalGradient`` by operator, of operators that some release of TVM has."""
