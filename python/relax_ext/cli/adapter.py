# SPDX-License-Identifier: Apache-2.0
"""Relax behind the command line: files, modules, and the virtual machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from conv_cli import onnx_model, tflite_model
from conv_cli.adapter import Adapter, Compiled, Observed, Ran
from conv_cli.check import Progress as CommandProgress
from conv_cli.measure import Protocol, Side, device, timed
from conv_cli.model import Model
from conv_cli.operators import Operator
from conv_cli.usage import RELAX
from topi_ext.code_cache.build import why_nothing_is_kept
from topi_ext.compat import variable_name
from topi_ext.kernel.info import KernelInfo
from topi_ext.tuning.rpc import Board

from .. import registry
from ..pipeline import pipeline
from ..tune import Progress, tune
from . import gradcheck, operators, torch_model
from .instrument import KernelNames, calls_of
from .remote import RemoteCompiled


def from_onnx(proto: Any, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Relax module of an ONNX model, by TVM's importer."""
    from tvm.relax.frontend.onnx import from_onnx as convert

    return convert(proto, shape_dict={name: list(shape) for name, shape in shapes.items()})


def from_tflite(model: Any, inputs: Mapping[str, Any]) -> Any:
    """Relax module of a TFLite model, by TVM's importer."""
    from tvm.relax.frontend.tflite import from_tflite as convert

    mod = convert(model, shape_dict={name: tuple(t.shape) for name, t in inputs.items()})
    main = mod["main"]
    # Weights that the importer keeps out of the module follow the inputs.
    weights = [variable_name(param) for param in main.params[len(inputs) :]]
    return relax.transform.BindParams("main", dict(zip(weights, main.attrs["params"])))(mod)


class RelaxCompiled(Compiled):
    """A function of the virtual machine."""

    def __init__(self, mod: Any, target: Any, function: str, **options: Any) -> None:
        self.device = device(target)
        self.on_cpu = self.device.dlpack_device_type() == tvm.cpu().dlpack_device_type()
        executable = tvm.compile(mod, target, **options)
        self.machine = relax.VirtualMachine(executable, self.device)
        self.function = self.machine[function]

    def put(self, tensors: list[Any]) -> list[Any]:
        """Return the arguments on the device, copied: TVM wants the 64-byte alignment of torch's
        own data.
        """
        arrays = [tvm.runtime.from_dlpack(t.detach().clone().contiguous()) for t in tensors]
        if self.on_cpu:
            return arrays
        return [a.copyto(self.device) for a in arrays]

    def run(self, arguments: list[Any]) -> Any:
        """Execute the function once, and return when it has finished."""
        result = self.function(*arguments)
        self.device.sync()
        return result

    def get(self, result: Any) -> list[Any]:
        """Return the tensors of a result, nested tuples flattened."""
        from torch.utils import dlpack

        if not isinstance(result, tvm.runtime.Tensor):
            return [t for item in result for t in self.get(item)]
        return [dlpack.from_dlpack(result if self.on_cpu else result.copyto(tvm.cpu()))]


class RelaxObserved(RelaxCompiled, Observed):
    """A function of the virtual machine, compiled by our pipeline, that tells of its calls."""

    def __init__(self, mod: Any, target: Any, function: str) -> None:
        recorded = KernelNames(target)
        super().__init__(mod, target, function, relax_pipeline=recorded.pipeline)
        self.kernels = {name: info.kernel for name, info in recorded.infos.items()}

    def observed(
        self, arguments: list[Any], protocol: Protocol
    ) -> tuple[list[list[Ran]], Mapping[str, str]]:
        """See :class:`~conv_cli.adapter.Observed`."""
        runs: list[list[Ran]] = []

        def run() -> None:
            with calls_of(self.machine, self.device) as calls:
                self.run(arguments)
            runs.append(calls)

        timed(run, protocol)
        return runs[1:] or runs, self.kernels


class Shown(Progress):
    """Progress of tuning as lines and a bar."""

    def __init__(self, say: Callable[[str], None], bar: CommandProgress) -> None:
        super().__init__(say)
        self._bar = bar

    def start(self, total: int) -> None:
        """Show the number of kernels that will be measured."""
        self._bar.start(total)

    def step(self, what: str) -> None:
        """Show the kernel that is measured next."""
        self._bar.step(what)


class RelaxAdapter(Adapter):
    """Relax, through plain ``tvm.compile``."""

    usage = RELAX
    registry = registry
    adjoint = gradcheck.ADJOINT
    tvm_packages = ("apache-tvm", "apache-tvm-ffi")
    pipeline = "relax_ext.pipeline"
    loaders = {  # noqa: RUF012 (never changed)
        ".pt2": torch_model.load,
        ".onnx": partial(onnx_model.load, convert=from_onnx),
        ".tflite": partial(tflite_model.load, convert=from_tflite),
    }

    why_nothing_is_kept = staticmethod(why_nothing_is_kept)
    build = staticmethod(operators.build)
    differentiated = staticmethod(gradcheck.differentiated)
    prepare = staticmethod(gradcheck.prepare)

    def __init__(self, board: Board | None = None) -> None:
        self.board = board

    def on(self, board: Board) -> RelaxAdapter:
        """Return an adapter like this one whose functions run on a board."""
        return RelaxAdapter(board)

    def compile(self, module: Any, target: Any, function: str) -> Compiled:
        """Compile a module as its user would."""
        return self._compiled(module, target, function)

    def compile_whole(self, module: Any, target: Any, function: str) -> Compiled:
        """Compile with constant weights packed, and what follows a convolution fused."""
        return self._compiled(module, target, function, relax_pipeline=pipeline(target))

    def compile_observed(self, module: Any, target: Any, function: str) -> Observed:
        """Compile a module for profiling."""
        return RelaxObserved(module, target, function)

    def kernels(self, module: Any, target: Any) -> tuple[list[KernelInfo], list[str]]:
        """See :class:`~conv_cli.adapter.Adapter`."""
        recorded = KernelNames(target)
        with target:
            recorded.pipeline(module)
        return list(recorded.infos.values()), recorded.others

    def tune(
        self,
        module: Any,
        target: Any,
        database: Path,
        say: Callable[[str], None],
        board: Board | None = None,
    ) -> list[Any]:
        """Measure plans of a model's convolutions, and keep the fastest in a file."""
        from conv_cli.report import Bar  # needs rich

        with Bar() as bar:
            return tune(module, target, database, say=Shown(say, bar), board=board)

    def _compiled(self, module: Any, target: Any, function: str, **options: Any) -> Compiled:
        if self.board:
            return RemoteCompiled(module, target, function, self.board, **options)
        return RelaxCompiled(module, target, function, **options)

    def find(self, model: Model) -> Counter[Operator]:
        """Return every different convolution of a model, and how often it occurs."""
        return operators.find(operators.bind_sizes(model.mod, model.inputs))

    def gradients(self, result: Any) -> Any:
        """See :class:`~conv_cli.adapter.Adapter`."""
        return result[1]

    def check_model(
        self, model: Model, prepared: Any, protocol: Protocol, seed: int
    ) -> tuple[Side, Side, float]:
        """Return the gradients of a whole model: stock, ours, PyTorch's milliseconds."""
        return gradcheck.check_model(self, model, prepared, protocol, seed)


ADAPTER = RelaxAdapter()
