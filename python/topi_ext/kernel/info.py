# SPDX-License-Identifier: Apache-2.0
"""Description of the kernel and plan of an operator: attributes of its PrimFunc, and a line of
text.

``TVM_CONV_VERBOSE=1`` prints a line to standard error for each kernel that is asked for, ``2`` also
one for every other kernel of its kind: its estimate, or why it was refused; ``json`` prints a JSON
object.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..spec.problem import by

VARIABLE = "TVM_CONV_VERBOSE"

KERNEL = "topi_ext.kernel"
"""Attribute of a PrimFunc: the name of its kernel."""

INFO = "topi_ext.kernel_info"
"""Attribute of a PrimFunc: its :class:`KernelInfo` as JSON."""

_OFF = ("", "0", "off", "no", "false")


@dataclass(frozen=True)
class KernelInfo:
    """The problem that a kernel computes, and its plan.

    Attributes
    ----------
    kind : str
        Kind of operator: ``conv``, ``conv_transpose``, ``conv_weight_grad``, ``matmul``, ...
    shape : str
        Of operands and result.
    dtypes : tuple of str
        Of operands and result.
    post_ops : tuple of str
        Post-ops that are applied to the result before it is written.
    kernel : str
        Name of the kernel; of one that chooses at run time, with those that it chooses from.
    plan : mapping
        The fields of its plan.
    estimate : float or None
        Estimated time, by the cost model; None if there is no estimate.
    unit : str
        Unit of the estimate: ``cycles`` or ``ns``.
    origin : str
        Where the plan comes from: ``estimate``, ``measured``, ``selected`` or ``given``.
    """

    kind: str
    shape: str
    dtypes: tuple[str, ...]
    post_ops: tuple[str, ...]
    kernel: str
    plan: Mapping[str, Any]
    estimate: float | None = None
    unit: str = "cycles"
    origin: str = "estimate"

    def line(self) -> str:
        """Return the line that is printed."""
        what = [f"{self.kind} {self.shape}", ",".join(dict.fromkeys(self.dtypes))]
        if self.post_ops:
            what.append("+".join(self.post_ops))
        estimate = "" if self.estimate is None else f" {self.estimate:.3g} {self.unit}"
        fields = " ".join(f"{name}={_text(value)}" for name, value in self.plan.items())
        return " | ".join([*what, self.kernel, f"{self.origin}{estimate}", fields])

    def to_json(self) -> str:
        """Return the JSON object that is printed."""
        return json.dumps(asdict(self))


def info_of(func: Any) -> KernelInfo | None:
    """Return the info of a PrimFunc, or None of one that is no kernel of this package."""
    if func.attrs is None or INFO not in func.attrs:
        return None
    stated = json.loads(str(func.attrs[INFO]))
    names = ("dtypes", "post_ops")
    return KernelInfo(**{**stated, **{name: tuple(stated[name]) for name in names}})


def with_info(func: Any, info: KernelInfo) -> Any:
    """Return a PrimFunc with its info as attributes."""
    return func.with_attr(KERNEL, info.kernel).with_attr(INFO, info.to_json())


def announce(func: Any, verdicts: Callable[[], Iterable[str]]) -> Any:
    """Print the info of a kernel if the environment enables it, and the `verdicts` about all
    kernels of its kind if it asks for them; return the kernel.
    """
    wanted = os.environ.get(VARIABLE, "").strip().lower()
    info = None if wanted in _OFF or func is None else info_of(func)
    if info is not None:
        lines = [info.line(), *(f"  {line}" for line in (verdicts() if wanted == "2" else ()))]
        text = info.to_json() if wanted == "json" else "\n".join(f"tvm_conv: {a}" for a in lines)
        print(text, file=sys.stderr, flush=True)
    return func


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{name}={_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return by(value) if value else "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
