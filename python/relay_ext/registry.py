# SPDX-License-Identifier: Apache-2.0
"""Registering our rules with Relay's operators and importers, and restoring Relay's own exactly.

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

from topi_ext.adapters.registration import Registration
from topi_ext.compat import op_attr, relay, replace_op_attr, set_op_attr

from . import floats, ops, packing, quantized
from .attrs import OWN, STOCK, short_name
from .build_time import BuildTime
from .gradient import gradient
from .importers import HOOKS
from .relation import relate
from .shape import shape_function
from .strategy import packed_strategy, rewriting, strategy

R = relay()

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


_REWRITINGS = ("FTVMLegalize", "FTVMAlterOpLayout")


class _Registry(Registration):
    def __init__(self) -> None:
        super().__init__("relay_ext")
        self.relations: dict[str, str] = self.state.setdefault("relations", {})
        self.build_time = BuildTime(self.state.setdefault("build_time", {}))

    def install(self) -> None:
        for op in STOCK:
            rules = _rules(op, {key: op_attr(op, key) for key in _KEYS})
            for key in rules.keys() - {key for name, key in self.replaced if name == op}:
                replace_op_attr(self.replaced, op, key, rules[key], _LEVEL)
            if op not in self.relations:
                stock = self.relations[op] = _relation_of(op)
                _set_relation(op, _OURS + op, partial(relate, op, _relation(stock)))
        self._install_rewritings()
        for op in OWN:
            for key, rule in _rules(op, {}).items():
                set_op_attr(op, key, rule, _LEVEL)
            _set_relation(op, _OURS + op, partial(relate, op, None))
        _install_packed()
        HOOKS.install()
        self.build_time.install()

    def _install_rewritings(self) -> None:
        stock = op_attr(quantized.CONV, quantized.LEGALIZE)
        rules = {**quantized.rules(stock), **floats.LEGALIZATIONS}
        for op, strategy_of in floats.STRATEGIES.items():
            rules[op, "FTVMStrategy"] = _generic(f"{_OURS}{op}", strategy_of)
        for (op, key), rule in rules.items():
            if (op, key) not in self.replaced:
                replace_op_attr(self.replaced, op, key, rule, _LEVEL)
        if quantized.OP not in self.relations:
            self.relations[quantized.OP] = _relation_of(quantized.OP)
            stock = _relation(self.relations[quantized.FLOAT])
            ours = partial(quantized.relate_quantized, stock)
            _set_relation(quantized.OP, _OURS + quantized.OP, ours)

    def remove(self) -> None:
        super().remove()
        for op, stock in list(self.relations.items()):
            if _relation_of(op) == _OURS + op:
                tvm.ir.Op.get(op).add_type_rel(stock)
                del self.relations[op]
        for op in (*OWN, packing.CONV_PACKED):
            refuse = _refusal(op)
            for key in ("FTVMStrategy", "FPrimalGradient"):
                set_op_attr(op, key, None)
            _set_relation(op, f"relay_ext.unregistered.{op}", refuse)
        HOOKS.remove()
        self.build_time.remove()
        R.backend.te_compiler.get().clear()  # of what it built by the rules before

    def give_up(self) -> list[str]:
        names = super().give_up()
        names += [f"the type relation of {op}" for op in self.relations]
        self.relations.clear()
        return names + self.build_time.give_up() + HOOKS.give_up()


_OURS = "relay_ext."
"""Prefix of the names of our type relations."""

_registry = _Registry()


def register() -> None:
    """Register the rules of this package with Relay's operators; ``import relay_ext`` calls it.

    Registering twice has no further effect.  Inside a :func:`stock` block it acts at its end.
    """
    _registry.register()


def unregister() -> None:
    """Restore Relay's own rules for operators exactly.

    The operators that this package added keep their names, and raise an error if they are used.
    A rule that another package has set after ours is kept, with a warning.
    """
    _registry.unregister()


def registered() -> dict[str, bool]:
    """TVM's operators that this package is about, and whether their rules are ours now."""
    return {op: _registry.are_ours(op, _KEYS) for op in STOCK}


@contextmanager
def stock() -> Iterator[None]:
    """Use stock Relay inside a ``with`` block, for comparisons.

    It affects everything that this process imports, types, differentiates or builds inside the
    block.  It can be nested.  It is not thread-safe.

    Examples
    --------
    >>> with relay_ext.stock():
    ...     theirs = relay.build(module, target)
    """
    with _registry.stock():
        yield


def _rules(op: str, before: dict[str, Any]) -> dict[str, Any]:
    """Our attributes of an operator; None unsets one."""
    return {
        "FTVMStrategy": _generic(
            f"relay_ext.{op}", partial(strategy, op, before.get("FTVMStrategy"))
        ),
        **{key: rewriting(op, key, before.get(key)) for key in _REWRITINGS},
        "FPrimalGradient": partial(gradient, op, before.get("FPrimalGradient")),
        "FShapeFunc": partial(shape_function, op),
        "TShapeDataDependent": [False],
    }


def _install_packed() -> None:
    """Give the operator of packed weights its rules."""
    op = packing.CONV_PACKED
    set_op_attr(op, "FTVMStrategy", _generic(op, packed_strategy), _LEVEL)
    set_op_attr(op, "FInferCorrectLayout", packing.layouts_of_packed, _LEVEL)
    _set_relation(op, _OURS + op, packing.relate_packed)


def _generic(name: str, function: Callable[..., Any]) -> Any:
    """Return the function object of TVM that a strategy must be."""

    def generic(attrs: Any, inputs: Any, out_type: Any, target: Any) -> Any:
        return function(attrs, inputs, out_type, target)

    return override_native_generic_func(name)(generic).generic_func_node


def _relation_of(op: str) -> str:
    """Return the name of the type relation that an operator has now."""
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


ops.add_own()
packing.add_own()
