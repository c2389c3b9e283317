# SPDX-License-Identifier: Apache-2.0
"""Putting our rules into TVM's operators and importers, and TVM's own back, exactly.

Rules are attributes of TVM's operators, which belong to the process: ``register``, ``unregister``
and ``stock`` are not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

from tvm.script import relax as script

from topi_ext.adapters.registration import Registration
from topi_ext.code_cache import build as code_cache
from topi_ext.compat import has_op, infer_key, op_attr, own_op, replace_op_attr, set_op_attr

from .gradients import GRADIENTS
from .importers import HOOKS
from .legalizations import LEGALIZATIONS
from .op import attention as attention_ops
from .op import ops
from .op.attrs import CONV_TRANSPOSE, CONV_WEIGHT_GRAD, OWN, STOCK
from .op.gradient import gradient
from .op.infer import infer
from .op.legalize import legalize
from .op.mixed_precision import ALWAYS, with_out_dtype

_ATTENTION = (attention_ops.SUMS, attention_ops.GRAD)
_ATTENTION_RULES: dict[str, Callable[..., Any]] = {
    infer_key(): attention_ops.infer,
    "FLegalize": attention_ops.legalize,
}
_RULES: dict[str, Callable[..., Any]] = {
    infer_key(): infer,
    "FLegalize": legalize,
    "FPrimalGradient": gradient,
}


class _Registry(Registration):
    def install(self) -> None:
        for op, key in product(STOCK, _RULES):
            if (op, key) not in self.replaced:
                rule = partial(_RULES[key], stock=op_attr(op, key))
                replace_op_attr(self.replaced, op, key, rule)
        for op, rules in LEGALIZATIONS.items():
            if (op, "FLegalize") not in self.replaced:
                lowering = op_attr(op, "FLegalize")
                for ours in reversed(rules):
                    lowering = partial(ours, stock=lowering)
                replace_op_attr(self.replaced, op, "FLegalize", lowering)
        for op, differentiate in GRADIENTS.items():
            if (op, "FPrimalGradient") not in self.replaced and has_op(op):
                replace_op_attr(self.replaced, op, "FPrimalGradient", differentiate)
        HOOKS.install()
        code_cache.install()
        for op, (key, rule) in product(OWN, _own_rules().items()):
            set_op_attr(op, key, rule)
        for op, (key, rule) in product(_ATTENTION, _ATTENTION_RULES.items()):
            set_op_attr(op, key, rule)

    def remove(self) -> None:
        super().remove()
        HOOKS.remove()
        code_cache.remove()
        for op in (*OWN, *_ATTENTION):
            for key, rule in _refusals(op).items():
                set_op_attr(op, key, rule)

    def give_up(self) -> list[str]:
        return super().give_up() + HOOKS.give_up()


_registry = _Registry("relax_ext")


def register() -> None:
    """Register the rules of this package with TVM's operators; ``import relax_ext`` calls it.

    It also corrects TVM's importers of ONNX, PyTorch and TFLite, without importing them.

    Registering twice has no further effect.  Inside a :func:`stock` block it acts at the block's
    end.
    """
    _registry.register()


def unregister() -> None:
    """Restore TVM's own rules for operators and importers exactly.

    The operators that this package added keep their names, and raise an error if they are used.
    A rule that another package has set after ours is kept, with a warning.
    """
    _registry.unregister()


def registered() -> dict[str, bool]:
    """TVM's operators that this package is about, and whether their rules are ours now."""
    return {op: _registry.are_ours(op, _RULES) for op in STOCK}


@contextmanager
def stock() -> Iterator[None]:
    """Use stock TVM inside a ``with`` block, for comparisons.

    It affects everything that this process compiles, emits or differentiates inside the block.  It
    can be nested.  It is not thread-safe.

    Examples
    --------
    >>> with relax_ext.stock():
    ...     theirs = tvm.compile(module, target)
    """
    with _registry.stock():
        yield


def _own_rules() -> dict[str, Any]:
    return {
        **{key: partial(rule, stock=None) for key, rule in _RULES.items()},
        "FInferMixedPrecision": with_out_dtype,
        "TMixedPrecisionPolicy": ALWAYS,
    }


def _refusals(op: str) -> dict[str, Any]:
    def refuse(*_: Any) -> Any:
        name = op.rpartition(".")[2]
        raise RuntimeError(f"{name}: relax_ext is unregistered, relax_ext.register() is needed")

    return {**dict.fromkeys(_own_rules(), None), **dict.fromkeys(_RULES, refuse)}


own_op(CONV_TRANSPOSE, "See relax_ext.conv_transpose", ("data", "weight", "size"))
own_op(CONV_WEIGHT_GRAD, "See relax_ext.conv_weight_grad", ("x", "y"))

# TVMScript prints the calls as R.relax_ext.conv_weight_grad(...): this lets it read them too.
script.relax_ext = script.parser.relax_ext = ops
