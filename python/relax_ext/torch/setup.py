# SPDX-License-Identifier: Apache-2.0
"""Initialization by ``import relax_ext.torch``: check PyTorch's version, register the backend."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

BACKEND = "tvm_conv"
OLDEST_TORCH = (2, 5)


def require_torch() -> None:
    """Raise if PyTorch is missing or too old.

    Raises
    ------
    ImportError
        If PyTorch is missing or too old.
    """
    oldest = ".".join(map(str, OLDEST_TORCH))
    try:
        import torch
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise ImportError(f"relax_ext.torch: needs PyTorch {oldest} or newer: {error}") from error
    numbers = re.findall(r"\d+", torch.__version__)[:2]
    if tuple(map(int, numbers)) < OLDEST_TORCH:
        raise ImportError(
            f"relax_ext.torch: torch {torch.__version__} is too old: it needs {oldest} or newer"
        )


def register_backend(compiler: Callable[..., Any]) -> None:
    """Register the backend, unless an entry point registers it."""
    from torch._dynamo import list_backends
    from torch._dynamo.backends.registry import register_backend as register

    if BACKEND not in list_backends(exclude_tags=()):
        register(compiler, name=BACKEND)
