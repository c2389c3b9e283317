# SPDX-License-Identifier: Apache-2.0
"""Functions of TVM that a benchmark needs, in Relax or Relay; each has its own environment.

An engine is a module, ``by_relax`` or ``by_relay``, with

* ``NAME``, ``VERSIONS``: what the header says,
* ``host_target(num_cores)``, ``warm_up(target)``,
* ``build_ours(case, kind, dtype, target)`` and ``build_stock(...)``, which give a :class:`Built`,
* ``build_symbolic(...)``: ours for any batch and spatial sizes,
* ``build_prepacked(..., weight)``: ours with a weight that is known when it is compiled,
* ``kernel(func, target)``: a PrimFunc as a function of what ``array(tensor)`` gives,
* ``as_torch(result)``: the result of a bound call as a tensor of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

ENVIRONMENTS = {"relax": (".venv", "make env"), "relay": (".venv-relay", "make env-relay")}


class UnavailableError(Exception):
    """An IR has nothing that computes this; the message says what is missing."""


class Built(Protocol):
    """A compiled operator."""

    seconds: float
    """Time of compilation."""

    def bound(self, tensors: Mapping[str, Tensor]) -> Callable[[], Any]:
        """A call without arguments on the tensors with the roles of the operands."""


def engine(ir: str) -> Any:
    """Return the engine of an IR.

    Raises
    ------
    ValueError
        One line: this environment's TVM does not have that IR.
    """
    try:
        return importlib.import_module(f"{__package__}.by_{ir}")
    except ImportError as error:
        folder, command = ENVIRONMENTS[ir]
        raise ValueError(
            f"--ir {ir}: this Python has no such TVM ({error}); "
            f"{command} makes one, {folder}/bin/python runs it"
        ) from error
