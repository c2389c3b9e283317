# SPDX-License-Identifier: Apache-2.0
"""Baselines that pack a constant weight when they are built, and what each has to have.

A baseline is a module, ``by_NAME``, with ``call(case, kind, tensors, threads)``, which gives a
:class:`Call` or raises :class:`~.engines.UnavailableError`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from torch import Tensor

from .arguments import PACKED_BASELINES
from .cases import Case

_PACKAGES = {
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "onnx"),
    "inductor": ("torch",),
}


@dataclass(frozen=True)
class Call:
    """A call without arguments, and what makes its result a tensor of its own."""

    run: Callable[[], Any]
    read: Callable[[Any], Tensor]


def require(baselines: Sequence[str], dtype: str) -> dict[str, str]:
    """Return the versions of those of `baselines` that are in this module.

    Raises
    ------
    ValueError
        One line: what a baseline needs is not here, or it does not take `dtype`.
    """
    found: dict[str, str] = {}
    for name in (baseline for baseline in baselines if baseline in PACKED_BASELINES):
        if dtype != "float32":
            raise ValueError(f"--rivals {name}: --dtype {dtype} must be float32")
        for package in _PACKAGES[name]:
            if importlib.util.find_spec(package) is None:
                raise ValueError(
                    f"--rivals {name}: this Python has no {package}; "
                    "make env-rivals makes one that has, .venv-rivals/bin/python runs it"
                )
            found[package] = version(package)
        compiler = os.environ.get("CXX", "g++")
        if name == "inductor" and shutil.which(compiler) is None:
            raise ValueError(f"--rivals inductor: needs a C++ compiler, {compiler} is not here")
    return found


def call(name: str, case: Case, kind: str, tensors: Mapping[str, Tensor], threads: int) -> Call:
    """Return a baseline's call of one kind of operator."""
    module = importlib.import_module(f"{__package__}.by_{name}")
    found: Call = module.call(case, kind, tensors, threads)
    return found
