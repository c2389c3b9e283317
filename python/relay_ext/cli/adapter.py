# SPDX-License-Identifier: Apache-2.0
"""Relay for the command line: files, modules, and the graph executor."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import tvm

from conv_cli import onnx_model, tflite_model
from conv_cli.adapter import Adapter, Compiled
from conv_cli.errors import quiet
from conv_cli.measure import device
from conv_cli.model import Model
from conv_cli.operators import Operator
from conv_cli.usage import RELAY
from topi_ext.code_cache.llvm_modules import why_nothing_is_kept
from topi_ext.compat import relay

from .. import registry
from . import keras_model, operators, script_model, tensorflow_model
from .bound import bound
from .diagnostics import in_errors


def from_onnx(proto: Any, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Relay module of an ONNX model, by TVM's importer."""
    with in_errors():
        mod, params = relay().frontend.from_onnx(proto, dict(shapes), freeze_params=True)
        mod["main"] = relay().build_module.bind_params_by_name(mod["main"], params)
        return relay().transform.DynamicToStatic()(mod)


def from_tflite(model: Any, inputs: Mapping[str, Any]) -> Any:
    """Relay module of a TFLite model, by TVM's importer."""
    shapes = {name: tuple(t.shape) for name, t in inputs.items()}
    with in_errors():
        mod, params = relay().frontend.from_tflite(model, shapes)
        return bound(mod, params, inputs)


class RelayCompiled(Compiled):
    """A function of the graph executor."""

    def __init__(self, mod: Any, target: Any) -> None:
        from tvm.contrib import graph_executor

        self.device = device(target)
        # Without a network, TVM warns five times for every build.
        with tvm.transform.PassContext(opt_level=3), quiet(logging.WARNING), in_errors():
            library = relay().build(mod, target)
        self.names = [param.name_hint for param in mod["main"].params]
        self.executor = graph_executor.GraphModule(library["default"](self.device))

    def put(self, tensors: list[Any]) -> Any:
        """Arguments into the executor, copied: TVM wants the alignment of torch's own data."""
        for name, tensor in zip(self.names, tensors):
            if self.executor.get_input_index(name) < 0:
                continue  # TVM drops what the model does not use
            self.executor.set_input(name, tvm.nd.from_dlpack(tensor.detach().clone().contiguous()))

    def run(self, arguments: Any) -> Any:
        """Execute the function once, and return when it has finished."""
        self.executor.run()
        self.device.sync()
        return [self.executor.get_output(i) for i in range(self.executor.get_num_outputs())]

    def get(self, result: Any) -> list[Any]:
        """Return the outputs, in order."""
        import torch

        return [torch.from_numpy(array.numpy()) for array in result]


class RelayAdapter(Adapter):
    """Relay, through plain ``relay.build``."""

    usage = RELAY
    registry = registry
    tvm_packages = ("bitblas",)
    loaders = {  # noqa: RUF012 (never changed)
        ".pt": script_model.load,
        ".ts": script_model.load,
        ".onnx": partial(onnx_model.load, convert=from_onnx),
        ".tflite": partial(tflite_model.load, convert=from_tflite),
        ".pb": tensorflow_model.load,
        ".keras": keras_model.load,
    }

    why_nothing_is_kept = staticmethod(why_nothing_is_kept)
    build = staticmethod(operators.build)
    differentiated = staticmethod(operators.differentiated)

    def compile(self, module: Any, target: Any, function: str) -> Compiled:
        """Compile a module as its user would."""
        del function  # a Relay module is built whole
        return RelayCompiled(module, target)

    def find(self, model: Model) -> Counter[Operator]:
        """Return every different convolution of a model, and how often it occurs."""
        return operators.find(model.mod)

    def gradients(self, result: Any) -> Any:
        """See :class:`~conv_cli.adapter.Adapter`."""
        return result[1:3]  # after the loss, before the gradient of dy


ADAPTER = RelayAdapter()
