# SPDX-License-Identifier: Apache-2.0
"""The calls of Relax's virtual machine, one by one, and which of them are kernels of ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm

from conv_cli.adapter import Ran
from topi_ext.compat import tir
from topi_ext.kernel.info import KernelInfo, info_of

from ..pipeline import pipeline


class KernelNames:
    """A pipeline that remembers which functions of the module are kernels of ours.

    Attributes
    ----------
    infos : dict of str to KernelInfo
        Infos of the functions by name, available after the pipeline has run.
    others : list of str
        Names of the functions that TVM computes.
    pipeline : tvm.transform.Pass
        :func:`relax_ext.pipeline`, for ``tvm.compile``.
    """

    def __init__(self, target: Any) -> None:
        self.infos: dict[str, KernelInfo] = {}
        self.others: list[str] = []
        passes = pipeline(target)

        @tvm.transform.module_pass(opt_level=0, name="relax_ext.observed")
        def run(module: Any, _: Any) -> Any:
            module = passes(module)
            for name, func in module.functions_items():
                info = info_of(func) if isinstance(func, tir.PrimFunc) else None
                if info is not None:
                    self.infos[name.name_hint] = info
                elif isinstance(func, tir.PrimFunc):
                    self.others.append(name.name_hint)
            return module

        self.pipeline = run


@contextmanager
def calls_of(machine: Any, device: Any) -> Iterator[list[Ran]]:
    """The calls that a virtual machine makes inside the block.

    The time of a function of Relax that calls others is theirs.
    """
    calls: list[Ran] = []
    begun: list[tuple[str, int]] = []
    called: list[bool] = []

    def instrument(_: Any, symbol: str, is_before: bool, __: Any, *args: Any) -> None:
        device.sync()
        now = time.perf_counter_ns()
        if is_before:
            called[-1:] = [True] * len(called[-1:])
            called.append(False)
            begun.append((symbol, time.perf_counter_ns()))
            return
        name, start = begun.pop()
        if not called.pop():
            shapes = tuple(
                tuple(map(int, arg.shape)) for arg in args if isinstance(arg, tvm.runtime.Tensor)
            )
            calls.append(Ran(name, shapes, now - start))

    machine.set_instrument(instrument)
    try:
        yield calls
    finally:
        machine.set_instrument(lambda *_: None)
