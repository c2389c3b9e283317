# SPDX-License-Identifier: Apache-2.0
"""``tvm.relax.frontend.nn``: the weight of a grouped Conv3D has the channels of one group."""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

NEEDS = {
    "Conv3D.__init__": (
        *("self", "in_channels", "out_channels", "kernel_size", "stride", "padding"),
        *("dilation", "groups", "bias", "dtype", "data_layout"),
    ),
}


def corrections(module: ModuleType) -> dict[str, Any]:
    """Return a Conv3D as TVM's, with another weight where there are groups."""
    stock = vars(module.Conv3D)["__init__"]

    @wraps(stock)
    def init(self: Any, in_channels: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, in_channels, *args, **kwargs)
        if self.groups != 1:
            out, _, *kernel = self.weight.shape
            shape = [out, in_channels // self.groups, *kernel]
            self.weight = module.Parameter(shape, self.weight.dtype)

    return {"Conv3D.__init__": init}
