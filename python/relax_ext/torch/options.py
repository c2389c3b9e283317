# SPDX-License-Identifier: Apache-2.0
"""Options of ``torch.compile(..., backend="tvm_conv", options={...})``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import tvm

from topi_ext.spec.geometry import fail
from topi_ext.target import host_target

from .setup import BACKEND

UNKNOWN = ("eager", "raise")


@dataclass(frozen=True)
class Options:
    """Options of one call of ``torch.compile``.

    Attributes
    ----------
    target : tvm.target.Target or None
        An llvm target for this machine; None means :func:`relax_ext.host_target`.
    threads : int or None
        Threads that kernels are planned for and run on; None follows ``torch.get_num_threads()``.
    database : str, path or None
        Measured plans, as for :func:`relax_ext.pipeline`.
    unknown : str
        ``"eager"`` leaves operators that cannot be compiled in PyTorch, with a warning, and small
        graphs, which PyTorch runs as fast; ``"raise"`` raises, and compiles these.
    freeze : bool
        Pack the weights of inference graphs once, and again when a change of a weight is detected.
    dtype : torch.dtype or None
        The dtype in which products and convolutions of float32 operands are computed, bfloat16 or
        float16, with its name or as a ``torch.dtype``; None means that of the operands.
    static_sizes : int or None
        Number of tuples of sizes for which a graph with symbolic sizes is compiled as if they were
        known, before one function serves all others; 0 compiles that one at once.  None means 1
        where PyTorch made sizes symbolic by itself, and 0 where ``dynamic=True`` or a mark did.
    """

    target: Any = None
    threads: int | None = None
    database: str | Path | None = None
    unknown: str = "eager"
    freeze: bool = False
    dtype: torch.dtype | None = None
    static_sizes: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Return the options of a mapping.

        Raises
        ------
        ValueError
            For an unknown name or value.
        """
        given = dict(given or {})
        known = [field.name for field in fields(cls)]
        for name, value in given.items():
            if name not in known:
                raise fail(BACKEND, f"option {name}={value!r} must be one of {', '.join(known)}")
        if given.get("target") is not None:
            given["target"] = _llvm(given["target"])
        if given.get("dtype") is not None:
            given["dtype"] = _lower_dtype(given["dtype"])
        options = cls(**given)
        options._check()
        return options

    @property
    def raises(self) -> bool:
        """Return whether an operator that cannot be compiled is an error."""
        return self.unknown == "raise"

    def compile_target(self) -> Any:
        """Return the target for the threads that PyTorch has now."""
        return self.target or host_target(self.threads or torch.get_num_threads())

    def _check(self) -> None:
        counts = (("threads", self.threads, 1), ("static_sizes", self.static_sizes, 0))
        for name, count, least in counts:
            is_count = isinstance(count, int) and not isinstance(count, bool) and count >= least
            if count is not None and not is_count:
                what = "a positive integer" if least else "an integer of at least 0"
                raise fail(BACKEND, f"option {name}={count!r} must be {what}")
        if self.database is not None and not isinstance(self.database, (str, Path)):
            raise fail(BACKEND, f"option database={self.database!r} must be the path of a file")
        if self.unknown not in UNKNOWN:
            raise fail(BACKEND, f"option unknown={self.unknown!r} must be 'eager' or 'raise'")
        if not isinstance(self.freeze, bool):
            raise fail(BACKEND, f"option freeze={self.freeze!r} must be True or False")


def _lower_dtype(given: Any) -> torch.dtype:
    for dtype in (torch.bfloat16, torch.float16):
        if given in (dtype, str(dtype).removeprefix("torch.")):
            return dtype
    raise fail(BACKEND, f"option dtype={given!r} must be bfloat16 or float16")


def _llvm(given: Any) -> Any:
    try:
        target = tvm.target.Target(given)
    except Exception as error:
        raise fail(BACKEND, f"option target={given!r} must be a target of TVM") from error
    if target.kind.name != "llvm":
        raise fail(BACKEND, f"option target={given!r} must be an llvm target")
    return target
