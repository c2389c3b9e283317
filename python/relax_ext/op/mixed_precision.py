# SPDX-License-Identifier: Apache-2.0
"""Rules of this package's operators for ToMixedPrecision."""

from __future__ import annotations

from typing import Any

import tvm

ALWAYS = 0
"""The policy by which a call is always computed in lower precision."""


def with_out_dtype(call: Any, out_dtype: Any) -> Any:
    """Return the call with another output dtype, as ToMixedPrecision requires."""
    attrs = {str(name): value for name, value in call.attrs.items()}
    attrs["out_dtype"] = str(out_dtype)
    return type(call)(call.op, call.args, tvm.ir.make_node("ir.DictAttrs", **attrs))
