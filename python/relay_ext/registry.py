# SPDX-License-Identifier: Apache-2.0
"""Putting our rules into Relay's operators, and Relay's own back, exactly.

Rules are attributes of TVM's operators, which belong to the process: ``register``, ``unregister``
and ``stock`` are not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tvm
from tvm.target import override_native_generic_func

from topi_ext.target import has_kernels
from topi_ext.tvm_compat import op_attr, relay, set_op_attr

from . import frontend, ops
from .attrs import FACE, OWN, STOCK, short_name
from .gradient import gradient
from .relation import relate
from .shape import shape_function
from .strategy import strategy

R = relay()
_PYTORCH = R.frontend.pytorch.PyTorchOpConverter

_LEVEL = 11
"""Above 10, that of TVM's own rules."""

_KEYS = (
    "FTVMStrategy",
    "FTVMLegalize",
    "FTVMAlterOpLayout",
    "FPrimalGradient",
    "FShapeFunc",
    "TShapeDataDependent",
)


class _Registry:
    """What Relay's operators had before us, and whether our rules are wanted now."""

    def __init__(self) -> None:
        self.wanted = False
        self.stock_blocks = 0
        self.installed = False
        self.before: dict[str, dict[str, Any]] = {}
        self.relations: dict[str, str] = {}
        self.create_convert_map: Any = None

    def update(self) -> None:
        """Make Relay's operators what they should be now."""
        install = self.wanted and not self.stock_blocks
        if install == self.installed:
            return
        if install:
            self._install()
        else:
            self._remove()
        self.installed = install
        R.backend.te_compiler.get().clear()

    def _install(self) -> None:
        self.before = {op: {key: op_attr(op, key) for key in _KEYS} for op in STOCK}
        self.relations = {op: _relation_of(op) for op in STOCK}
        for op in FACE:
            before = self.before.get(op, {})
            for key, rule in _rules(op, before).items():
                set_op_attr(op, key, rule, _LEVEL)
            stock = _relation(self.relations[op]) if op in self.relations else None
            _set_relation(op, f"relay_ext.{op}", partial(relate, op, stock))
        self.create_convert_map = _PYTORCH.create_convert_map
        _PYTORCH.create_convert_map = _with_ours(self.create_convert_map)

    def _remove(self) -> None:
        for op, attributes in self.before.items():
            for key, before in attributes.items():
                set_op_attr(op, key, before)
            tvm.ir.Op.get(op).add_type_rel(self.relations[op])
        for op in OWN:
            refuse = _refusal(op)
            for key in ("FTVMStrategy", "FPrimalGradient"):
                set_op_attr(op, key, None)
            _set_relation(op, f"relay_ext.unregistered.{op}", refuse)
        _PYTORCH.create_convert_map = self.create_convert_map


_registry = _Registry()


def register() -> None:
    """Make Relay's convolutions and transposed convolutions ours; ``import relay_ext`` does it.

    Registering twice is harmless.  Inside a :func:`stock` block it acts when the block ends.
    """
    _registry.wanted = True
    _registry.update()


def unregister() -> None:
    """Give Relay's operators their own rules back, exactly.

    The operators that this package added keep their names, and refuse to be used in one line.
    """
    _registry.wanted = False
    _registry.update()


def registered() -> dict[str, bool]:
    """TVM's operators that this package is about, and whether their rules are ours now."""
    return dict.fromkeys(STOCK, _registry.installed)


@contextmanager
def stock() -> Iterator[None]:
    """Stock Relay inside a ``with`` block, for comparing.

    It acts on what is imported, typed, differentiated or built inside the block, in this process,
    and may be nested.  It is not thread-safe.

    Examples
    --------
    >>> with relay_ext.stock():
    ...     theirs = relay.build(module, target)
    """
    _registry.stock_blocks += 1
    _registry.update()
    try:
        yield
    finally:
        _registry.stock_blocks -= 1
        _registry.update()


def _rules(op: str, before: dict[str, Any]) -> dict[str, Any]:
    """Our attributes of an operator; None unsets one."""
    return {
        "FTVMStrategy": _generic(
            f"relay_ext.{op}", partial(strategy, op, before.get("FTVMStrategy"))
        ),
        **{key: _unless_ours(op, before.get(key)) for key in ("FTVMLegalize", "FTVMAlterOpLayout")},
        "FPrimalGradient": partial(gradient, op, before.get("FPrimalGradient")),
        "FShapeFunc": partial(shape_function, op),
        "TShapeDataDependent": [False],
    }


def _unless_ours(op: str, before: Any) -> Any:
    """TVM's rewriting of a call, where its strategy is left to TVM: ours takes every layout."""
    if before is None or FACE[op] != "conv":
        return None

    def rewrite(*call: Any) -> Any:
        return None if has_kernels(tvm.target.Target.current(allow_none=True)) else before(*call)

    return rewrite


def _generic(name: str, function: Callable[..., Any]) -> Any:
    """The function object of TVM that a strategy must be."""

    def generic(attrs: Any, inputs: Any, out_type: Any, target: Any) -> Any:
        return function(attrs, inputs, out_type, target)

    return override_native_generic_func(name)(generic).generic_func_node


def _relation_of(op: str) -> str:
    """Name of the type relation that an operator has now."""
    (constraint,) = tvm.ir.Op.get(op).op_type.type_constraints
    return str(constraint.func.name).removeprefix("tvm.relay.type_relation.")


def _relation(name: str) -> Any:
    return tvm.get_global_func(f"tvm.relay.type_relation.{name}")


def _set_relation(op: str, name: str, function: Callable[..., Any]) -> None:
    tvm.register_func(f"tvm.relay.type_relation.{name}", lambda *a: function(*a), override=True)
    tvm.ir.Op.get(op).add_type_rel(name)


def _refusal(op: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise RuntimeError(
            f"{short_name(op)}: relay_ext is unregistered, relay_ext.register() is needed"
        )

    return refuse


def _with_ours(create_convert_map: Callable[[Any], None]) -> Callable[[Any], None]:
    def create(converter: Any) -> None:
        create_convert_map(converter)
        converter.convert_map.update(frontend.convert_map(converter))

    return create


ops.add_own()
