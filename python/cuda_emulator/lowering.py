# SPDX-License-Identifier: Apache-2.0
"""From TIR to CUDA C++ and the host functions that launch it, by TVM's own passes."""

from __future__ import annotations

from typing import Any, NamedTuple

import tvm
from tvm import tirx
from tvm.tirx.build import codegen_build, split_host_device_mods

from . import host
from .faults import Unsupported

__all__ = ["Lowered", "lower", "target_of"]

_SHARED_KIB = {50: 48, 70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 110: 227, 120: 99}
"""Most shared memory of a block from a compute capability on: CUDA C++ Programming Guide, technical
specifications."""


class Lowered(NamedTuple):
    """CUDA C++, device functions by name, host functions by the name of their PrimFunc, and the
    bytes of shared memory that a block may have."""

    source: str
    kernels: dict[str, Any]
    hosts: dict[str, Any]
    shared: int

    def chosen(self, name: str | None) -> str:
        """A function by its name, which may be left out where there is one, or a ``main``."""
        if name is None:
            name = next(iter(self.hosts)) if len(self.hosts) == 1 else "main"
        if name not in self.hosts:
            raise ValueError(f"name={name!r} is none of {', '.join(self.hosts)}")
        return name

    def plan(self, *given: Any, name: str | None = None) -> host.Plan:
        """Return the plan of a call with arrays or their shapes (as tuples), and numbers."""
        name = self.chosen(name)
        return host.plan(name, self.hosts[name], self.kernels, given)


@tvm.instrument.pass_instrument
class _KeepHost:
    """The module as it is when kernels are split off and arguments are still buffers."""

    def __init__(self) -> None:
        self.module: Any = None

    def run_after_pass(self, module: Any, info: Any) -> None:
        if info.name.endswith("SplitHostDevice"):
            self.module = module


def target_of(target: Any) -> Any:
    """A CUDA target with a host, from one, from a name such as ``sm_90`` or from a dict."""
    if isinstance(target, str):
        target = {"kind": "cuda", "arch": target} if target.startswith("sm_") else target
    if isinstance(target, dict):
        target = {"max_threads_per_block": 1024, **target}
    target = tvm.target.Target(target)
    if target.kind.name != "cuda":
        raise Unsupported(f"a target of kind {target.kind.name}: only cuda is emulated")
    return target if target.host is not None else tvm.target.Target(target, host="llvm")


def _as_module(mod: Any) -> Any:
    if isinstance(mod, tvm.IRModule):
        others = [v.name_hint for v, f in mod.functions.items() if not _is_prim_func(f)]
        if others:
            raise Unsupported(f"{others[0]} is no PrimFunc: only TIR is emulated")
        return mod
    if not _is_prim_func(mod):
        raise Unsupported(f"{type(mod).__name__}: neither an IRModule nor a PrimFunc")
    named = mod.attrs is not None and "global_symbol" in mod.attrs
    name = str(mod.attrs["global_symbol"]) if named else "main"
    return tvm.IRModule({name: mod.with_attr("global_symbol", name)})


def _is_prim_func(function: Any) -> bool:
    return isinstance(function, tirx.PrimFunc)


def lower(mod: Any, target: Any) -> Lowered:
    """Run what ``tvm.compile`` runs, up to the text that it would hand to nvcc."""
    target, mod, keep = target_of(target), _as_module(mod), _KeepHost()
    current = tvm.transform.PassContext.current()
    context = tvm.transform.PassContext(
        opt_level=current.opt_level, config=dict(current.config), instruments=[keep]
    )
    with context:
        scheduled = any(f.attrs and "s_tir" in f.attrs for f in mod.functions.values())
        bound = tirx.transform.BindTarget(target)(mod)
        passes, _, finish = (
            tirx.get_tir_pipeline("s_tir") if scheduled else tirx.get_default_tir_pipeline(target)
        )
        _, devices = split_host_device_mods(passes(bound))
        if len(devices) != 1:
            raise Unsupported(f"{len(devices)} device targets in a module: one is emulated")
        device_target, device = next(iter(devices.items()))
        device = finish()(device)
        text = codegen_build(device, device_target).inspect_source()
    kernels = {v.name_hint: f for v, f in device.functions.items()}
    hosts = {v.name_hint: f for v, f in keep.module.functions.items() if v.name_hint not in kernels}
    return Lowered(text, kernels, hosts, _most_shared(device_target))


def _most_shared(target: Any) -> int:
    arch = int("".join(filter(str.isdigit, str(target.attrs["arch"]))))
    return _SHARED_KIB[max(known for known in _SHARED_KIB if known <= arch)] << 10
