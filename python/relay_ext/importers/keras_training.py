# SPDX-License-Identifier: Apache-2.0
"""Keras's batch normalizations along any axis, and layers that are called with ``training=True``.

TVM's importer ignores how a layer is called, and counts the axis of channels by the layout alone.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from topi_ext.compat import relay
from topi_ext.spec.geometry import fail

from .normalization import by_batch
from .tensorflow_operator import is_channels_first

R = relay()

_NORMALIZATION = "_convert_map[BatchNormalization]"
NEEDS = {
    _NORMALIZATION: ("inexpr", "keras_layer", "etab", "data_layout", "input_shape"),
    "keras_op_to_relay": ("inexpr", "keras_layer", "outname", "etab", "data_layout"),
}

_RANDOM = ("rate", "stddev", "dropout", "recurrent_dropout")
"""Attributes of layers whose result is random in training where one is not 0."""


def corrections(module: ModuleType) -> dict[str, Any]:
    """Return a converter of batch normalizations, and a conversion that checks how a layer is
    called.
    """
    stock = module.keras_op_to_relay

    def keras_op_to_relay(
        inexpr: Any, keras_layer: Any, outname: str, etab: Any, data_layout: str
    ) -> Any:
        node = keras_layer._inbound_nodes[int(outname.rpartition(":")[2])]
        if not _is_training(keras_layer, node):
            return stock(inexpr, keras_layer, outname, etab, data_layout)
        if type(keras_layer).__name__ != "BatchNormalization":
            raise fail(type(keras_layer).__name__, f"training=True must be False of {outname}")
        result = _batch_norm(inexpr, keras_layer, etab, data_layout, training=True)
        etab.set_expr(f"{outname}:0", result)
        return [result]

    def converter(
        inexpr: Any, keras_layer: Any, etab: Any, data_layout: str, input_shape: Any = None
    ) -> Any:
        del input_shape  # the layer knows how many axes it was made for
        return _batch_norm(inexpr, keras_layer, etab, data_layout)

    return {_NORMALIZATION: converter, "keras_op_to_relay": keras_op_to_relay}


def refuse_trained_models(model: Any) -> None:
    """Raise for a nested model that is called with ``training=True``, where that matters."""
    for layer in model.layers:
        if hasattr(layer, "layers"):
            if any(_is_training(layer, node) for node in layer._inbound_nodes):
                raise fail(type(layer).__name__, f"training=True must be False of {layer.name}")
            refuse_trained_models(layer)


def _is_training(layer: Any, node: Any) -> bool:
    """Return whether a call states ``training``, and the layer then is another one."""
    signature = inspect.signature(layer.call)
    if "training" not in signature.parameters:
        return False
    stated = signature.bind_partial(*node.call_args, **node.call_kwargs).arguments
    return bool(stated.get("training")) and _differs_in_training(layer)


def _differs_in_training(layer: Any) -> bool:
    if type(layer).__name__ == "BatchNormalization":
        return bool(layer.trainable)  # one that is not trainable stays in inference
    inner = [*getattr(layer, "layers", ()), *filter(None, [getattr(layer, "layer", None)])]
    return any(map(_differs_in_training, inner)) or any(
        isinstance(value := getattr(layer, name, None), (int, float)) and value != 0
        for name in _RANDOM
    )


def _batch_norm(data: Any, layer: Any, etab: Any, layout: str, training: bool = False) -> Any:
    rank = layer.input_spec.ndim
    axis = _axis(layer, rank, layout)
    weights = list(layer.get_weights())
    scale = etab.new_const(weights.pop(0)) if layer.scale else None
    offset = etab.new_const(weights.pop(0)) if layer.center else None
    if training:
        return by_batch(data, scale, offset, axis=axis, rank=rank, epsilon=layer.epsilon).data
    mean, variance = weights
    return R.nn.batch_norm(
        data,
        scale or etab.new_const(mean * 0 + 1),
        offset or etab.new_const(mean * 0),
        etab.new_const(mean),
        etab.new_const(variance),
        axis=axis,
        epsilon=layer.epsilon,
        center=layer.center,
        scale=layer.scale,
    )[0]


def _axis(layer: Any, rank: int, layout: str) -> int:
    """Axis of the channels as TVM's importer lays the data out: only images are transposed."""
    given = [layer.axis] if isinstance(layer.axis, int) else [*layer.axis]
    if len(given) != 1:
        raise fail("BatchNormalization", f"axis={given} must be one axis")
    axis = int(given[0]) % rank
    if rank == 4 and is_channels_first(layout):
        return (0, 2, 3, 1)[axis]
    return axis
