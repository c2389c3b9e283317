# SPDX-License-Identifier: Apache-2.0
"""From a PrimFunc to the text of its kernels, and to what the host launches.

It is what ``tvm.compile`` does up to the compiler of CUDA, which is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.build import codegen_build, split_host_device_mods

from .host import Launches, follow


@dataclass(frozen=True)
class Lowered:
    """A function for a GPU.

    Attributes
    ----------
    source : str
        CUDA of all its kernels.
    kernels : dict
        Their functions, by name.
    host : PrimFunc
    """

    source: str
    kernels: dict[str, Any]
    host: Any

    def launches(self, shapes: Sequence[Sequence[int]]) -> Launches:
        """What a call launches for operands of these shapes."""
        return follow(self.host, self.kernels, shapes)


def target_of(arch: str) -> Any:
    """The CUDA target of an architecture such as ``sm_90``."""
    cuda = {"kind": "cuda", "arch": arch, "max_threads_per_block": 1024}
    return tvm.target.Target(cuda, host={"kind": "llvm"})


def lower(func: Any, arch: str) -> Lowered:
    """Lower a scheduled PrimFunc."""
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    module = tirx.transform.BindTarget(target_of(arch))(module)
    pipeline, _, finish_device = tirx.get_tir_pipeline("s_tir")
    host, devices = split_host_device_mods(pipeline(module))
    (host_func,) = host.functions.values()
    ((target, device),) = devices.items()
    device = finish_device()(device)
    kernels = {str(one.attrs["global_symbol"]): one for one in device.functions.values()}
    return Lowered(codegen_build(device, target).inspect_source(), kernels, host_func)
