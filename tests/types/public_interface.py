# SPDX-License-Identifier: Apache-2.0
"""A program that uses the public interface, for a type checker and an installed package.

``make types`` checks this file as a user's program: it is not run.  Objects of TVM are ``Any``,
since TVM ships no types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, assert_type

import relax_ext
import relax_ext.torch
import relay_ext
from relax_ext.torch import Report
from relax_ext.training_step.step import TrainingStep
from topi_ext.spec.conv import Convolution

stock_of_relax: AbstractContextManager[None] = relax_ext.stock()
stock_of_relay: AbstractContextManager[None] = relay_ext.stock()
precise: AbstractContextManager[None] = relax_ext.float32_precision("tf32x3")
tune: Callable[..., Sequence[tuple[Any, ...]]] = relax_ext.tune
backend: Callable[..., Callable[..., Any]] = relax_ext.torch.tvm_conv


def training(module: object, batch: Sequence[object], optimizer: object) -> TrainingStep:
    """Return the step that a user trains with."""
    return assert_type(relax_ext.training(module, batch, optimizer, clip_norm=1.0), TrainingStep)


def report() -> Report:
    """Return what a user prints."""
    return assert_type(relax_ext.torch.report(), Report)


def problem(some: Convolution) -> str:
    """Return a field of a problem."""
    return assert_type(some.kind, str)
