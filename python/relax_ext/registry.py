# SPDX-License-Identifier: Apache-2.0
"""Putting our rules into TVM's operators, and TVM's own back, exactly.

Rules are attributes of TVM's operators, which belong to the process: ``register``, ``unregister``
and ``stock`` are not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tvm
from tvm.script import relax as script

from topi_ext.tvm_compat import infer_key, op_attr, own_op, set_op_attr

from . import ops
from .attrs import CONV_TRANSPOSE, CONV_WEIGHT_GRAD, OWN, STOCK
from .gradient import gradient
from .infer import infer
from .legalize import legalize

_ALWAYS_MIXED_PRECISION = 0

_RULES = {infer_key(): infer, "FLegalize": legalize, "FPrimalGradient": gradient}


class _Registry:
    """What TVM's operators had before us, and whether our rules are wanted now."""

    def __init__(self) -> None:
        self.wanted = False
        self.stock_blocks = 0
        self.installed = False
        self.before: dict[tuple[str, str], Any] = {}

    def update(self) -> None:
        """Make TVM's operators what they should be now."""
        install = self.wanted and not self.stock_blocks
        if install == self.installed:
            return
        if install:
            self.before = {(op, key): op_attr(op, key) for op in STOCK for key in _RULES}
            for (op, key), before in self.before.items():
                set_op_attr(op, key, partial(_RULES[key], stock=before))
        else:
            for (op, key), before in self.before.items():
                set_op_attr(op, key, before)
        for op in OWN:
            for key, rule in (_own_rules() if install else _refusals(op)).items():
                set_op_attr(op, key, rule)
        self.installed = install


_registry = _Registry()


def register() -> None:
    """Make TVM's convolutions and transposed convolutions ours; ``import relax_ext`` does it.

    Registering twice is harmless.  Inside a :func:`stock` block it acts when the block ends.
    """
    _registry.wanted = True
    _registry.update()


def unregister() -> None:
    """Give TVM's operators their own rules back, exactly.

    The operators that this package added keep their names, and refuse to be used in one line.
    """
    _registry.wanted = False
    _registry.update()


def registered() -> dict[str, bool]:
    """TVM's operators that this package is about, and whether their rules are ours now."""
    return dict.fromkeys(STOCK, _registry.installed)


@contextmanager
def stock() -> Iterator[None]:
    """Stock TVM inside a ``with`` block, for comparing.

    It acts on what is compiled, emitted or differentiated inside the block, in this process, and
    may be nested.  It is not thread-safe.

    Examples
    --------
    >>> with relax_ext.stock():
    ...     theirs = tvm.compile(module, target)
    """
    _registry.stock_blocks += 1
    _registry.update()
    try:
        yield
    finally:
        _registry.stock_blocks -= 1
        _registry.update()


def _own_rules() -> dict[str, Any]:
    return {
        **{key: partial(rule, stock=None) for key, rule in _RULES.items()},
        "FInferMixedPrecision": _with_out_dtype,
        "TMixedPrecisionPolicy": _ALWAYS_MIXED_PRECISION,
    }


def _refusals(op: str) -> dict[str, Any]:
    def refuse(*_: Any) -> Any:
        name = op.rpartition(".")[2]
        raise RuntimeError(f"{name}: relax_ext is unregistered, relax_ext.register() is needed")

    return {**dict.fromkeys(_own_rules(), None), **dict.fromkeys(_RULES, refuse)}


def _with_out_dtype(call: Any, out_dtype: Any) -> Any:
    """The same call with another output dtype, as ToMixedPrecision asks for it."""
    attrs = {str(name): value for name, value in call.attrs.items()}
    attrs["out_dtype"] = str(out_dtype)
    return type(call)(call.op, call.args, tvm.ir.make_node("ir.DictAttrs", **attrs))


own_op(CONV_TRANSPOSE, "See relax_ext.conv_transpose", ("data", "weight", "size"))
own_op(CONV_WEIGHT_GRAD, "See relax_ext.conv_weight_grad", ("x", "y"))

# TVMScript prints the calls as R.relax_ext.conv_weight_grad(...): this lets it read them too.
script.relax_ext = script.parser.relax_ext = ops
