# SPDX-License-Identifier: Apache-2.0
"""``from_keras`` with layouts that TVM's importer rejects: channels first, of one or three axes.

Also without models in models that are called in training.

TVM's converters of such layers know channels last only.  So the model is imported that way, and
transposed where data goes in and comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from topi_ext.compat import relay
from topi_ext.spec.geometry import fail

from .keras_training import refuse_trained_models

R = relay()

FROM_KERAS = ("model", "shape", "layout")
NEEDS = {"from_keras": FROM_KERAS}

_CHANNELS_LAST = {"NCW": "NWC", "NCDHW": "NDHWC"}


def corrections(module: ModuleType) -> dict[str, Any]:
    """``from_keras`` of the module, be it the importer or the package that shows it."""
    return {"from_keras": _from_keras(vars(module)["from_keras"])}


def _from_keras(stock: Callable[..., Any]) -> Callable[..., Any]:
    def from_keras(
        model: Any, shape: dict[str, Any] | None = None, layout: str = "NCHW"
    ) -> tuple[Any, dict[str, Any]]:
        refuse_trained_models(model)
        if layout not in _CHANNELS_LAST:
            return stock(model, shape, layout)
        if shape is None:
            raise fail("from_keras", f"shape=None must be given for layout={layout!r}")
        rank = len(layout)
        last = {
            name: (sizes[0], *sizes[2:], sizes[1]) if len(sizes) == rank else sizes
            for name, sizes in shape.items()
        }
        mod, params = stock(model, last, _CHANNELS_LAST[layout])
        return _channels_first(R.transform.InferType()(mod), params, rank), params

    from_keras.__doc__ = stock.__doc__
    return from_keras


def _channels_first(mod: Any, params: dict[str, Any], rank: int) -> Any:
    """Return a typed module whose operands and results of this rank have their channels first."""
    function = mod["main"]
    outside, inside = [], {}
    for var in function.params:
        sizes = var.checked_type.shape
        if var.name_hint in params or len(sizes) != rank:
            outside.append(var)
            continue
        shown = (sizes[0], sizes[-1], *sizes[1:-1])
        outside.append(R.var(var.name_hint, shape=shown, dtype=var.checked_type.dtype))
        inside[var] = R.transpose(outside[-1], (0, *range(2, rank), 1))

    def moved(expr: Any) -> Any:
        if isinstance(expr, R.Tuple):
            return R.Tuple([moved(field) for field in expr])
        is_image = len(expr.checked_type.shape) == rank
        return R.transpose(expr, (0, rank - 1, *range(1, rank - 1))) if is_image else expr

    body = R.bind(moved(function.body), inside)
    return R.transform.InferType()(type(mod).from_expr(R.Function(outside, body)))
