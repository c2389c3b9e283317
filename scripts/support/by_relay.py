# SPDX-License-Identifier: Apache-2.0
"""TVM's Relay, with relay_ext and stock: modules, builds and calls of the graph executor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import tvm
from torch import Tensor
from tvm import relay
from tvm.contrib import graph_executor

import relay_ext
from relay_ext.ops import conv_call
from topi_ext.spec.conv import OPERANDS
from topi_ext.spec.layout import Layouts

from .cases import Case
from .engines import UnavailableError

NAME = "Relay"
VERSIONS = {"tvm": tvm.__version__}
host_target = relay_ext.host_target


@dataclass
class Built:
    """A compiled operator of the tensors with the given roles; see :class:`engines.Built`."""

    roles: str
    seconds: float
    machine: Any

    def bound(self, tensors: Mapping[str, Tensor]) -> Callable[[], Any]:
        """Return a call without arguments: the operands are put into the executor once."""
        for role in self.roles:
            self.machine.set_input(role, tvm.nd.from_dlpack(tensors[role]))

        def call() -> Any:
            self.machine.run()
            return self.machine.get_output(0)

        return call


def as_torch(result: Any) -> Tensor:
    """Return the result of a bound call, as a tensor of its own."""
    return torch.utils.dlpack.from_dlpack(result).clone()


def array(tensor: Tensor) -> Any:
    """TVM's view of a tensor."""
    return tvm.nd.from_dlpack(tensor)


def warm_up(target: Any) -> None:
    """Compile something small: what a first build loads belongs to no case."""
    x = relay.var("x", shape=(1,))
    relay.build(tvm.IRModule.from_expr(relay.Function([x], relay.add(x, x))), target)


def build_ours(case: Case, kind: str, dtype: str, target: Any) -> Built:
    """Return the operator in a module of its own, through plain ``relay.build``."""
    return _build(case, kind, dtype, target)


def build_prepacked(case: Case, kind: str, dtype: str, target: Any, weight: Tensor) -> Built:
    """Relay has no pipeline of ours that packs.

    Raises
    ------
    UnavailableError
        Always.
    """
    raise UnavailableError("weights are packed ahead in Relax only")


def build_symbolic(case: Case, kind: str, dtype: str, target: Any) -> Built:
    """The graph executor takes no symbolic sizes.

    Raises
    ------
    UnavailableError
        Always.
    """
    raise UnavailableError("sizes known at run time are timed in Relax only")


def kernel(func: Any, target: Any) -> Callable[..., None]:
    """Return a PrimFunc, compiled; it takes arrays."""
    return tvm.build(func, target=target)


def build_stock(case: Case, kind: str, dtype: str, target: Any) -> Built:
    """Return the same through stock TVM.

    Raises
    ------
    UnavailableError
        Where stock has no weight gradient.
    """
    if kind == "conv_weight_grad" and case.geometry.rank != 2:
        raise UnavailableError(f"stock has no gradient of conv{case.geometry.rank}d")
    with relay_ext.stock():
        return _build(case, kind, dtype, target)


def _build(case: Case, kind: str, dtype: str, target: Any) -> Built:
    roles = OPERANDS[kind]
    params = [relay.var(role, shape=case.shape(role), dtype=dtype) for role in roles]
    geometry = case.geometry_of(kind)
    body = conv_call(kind, params, geometry, Layouts.canonical(geometry.rank), dtype)
    module = tvm.IRModule.from_expr(relay.Function(params, body))
    start = time.perf_counter()
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(module, target)
    seconds = time.perf_counter() - start
    return Built(roles, seconds, graph_executor.GraphModule(library["default"](tvm.cpu())))
