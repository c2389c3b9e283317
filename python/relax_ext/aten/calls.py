# SPDX-License-Identifier: Apache-2.0
"""A call of an aten operator, as its converter receives it.

A converter is a function ``convert(call)``.  It returns the result as a Relax expression, or a
tuple of them with None for unused results.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import fx
from torch._ops import OpOverload

from topi_ext.compat import call_attr, relax, type_of
from topi_ext.spec.geometry import fail

from ..gradients import GRADIENTS
from ..ir import HALF, are_same, dtype_of, sizes_of
from .scalars import scalar
from .sizes import SYMBOLIC, is_unbacked, leaves, size_in

R = relax()

_DTYPES = frozenset(
    (
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64"),
    )
)

Converter = Callable[["Call"], Any]


class Unsupported(Exception):  # noqa: N818  (a name that importer and graph compiler use)
    """A node that stays in PyTorch.

    Attributes
    ----------
    node : torch.fx.Node
    why : str
        The reason, without the operator's name.
    others : list of Unsupported
        The other nodes of the same function.
    """

    def __init__(self, node: Any, why: str) -> None:
        super().__init__(f"{getattr(node, 'target', node)}: {why}")
        self.node = node
        self.why = why
        self.others: list[Unsupported] = []


class Refused(ValueError):  # noqa: N818  (as Unsupported)
    """A call that no importer converts to what PyTorch computes."""

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(str(fail(name, rule)))


def why_not(node: fx.Node, unbacked: bool = False) -> str | None:
    """Return why no converter can read or state the tensors of a call, None if all can.

    With `unbacked`, sizes may be decided by values.
    """
    values = [node.meta.get("val"), *(operand.meta.get("val") for operand in node.all_input_nodes)]
    return next(filter(None, (_why_not_value(value, unbacked) for value in leaves(values))), None)


def _why_not_value(value: Any, unbacked: bool) -> str | None:
    if not isinstance(value, torch.Tensor):
        is_number = value is None or isinstance(value, (int, float, *SYMBOLIC))
        return None if is_number else f"a value of type {type(value).__name__}"
    if value.device.type != "cpu":
        return f"on {value.device}"
    if torch_dtype_name(value.dtype) not in _DTYPES or value.is_sparse or value.is_quantized:
        return f"of {value.dtype}"
    if value.layout is not torch.strided:
        return f"of layout {value.layout}"
    return "a size that values decide" if is_unbacked(value) and not unbacked else None


def torch_dtype_name(dtype: Any) -> str:
    """Return the name that TVM has for a dtype of PyTorch."""
    return str(dtype).removeprefix("torch.")


class Call:
    """A call with its arguments by name, and the primitives in which converters are written.

    Attributes
    ----------
    importer : AtenImporter
    node : torch.fx.Node
    symbols : dict of str to tirx.Var
        The variable of each symbolic size.
    overload : torch._ops.OpOverload
        The operator.
    value : object
        Result of PyTorch's fake execution: a fake tensor, or a tuple of them.
    is_imported : bool
        Whether the call belongs to a program that is imported as a whole, of which nothing can stay
        in PyTorch.
    """

    is_imported = False

    def __init__(self, importer: Any, node: fx.Node, symbols: Mapping[str, Any]) -> None:
        self.importer, self.symbols = importer, symbols
        self.node, self.overload = node, cast("OpOverload", node.target)
        self.value = node.meta["val"]
        schema = self.overload._schema.arguments
        self._nodes: dict[str, Any] = dict(zip((a.name for a in schema), node.args)) | dict(
            node.kwargs
        )
        given = {a.name: self._nodes.get(a.name, a.default_value) for a in schema}
        self._given = SimpleNamespace(
            **{name: importer._retrieve_args(value) for name, value in given.items()}
        )

    def __getitem__(self, name: str) -> Any:
        """Return an argument by its name in the schema: an expression, a number, a list, None."""
        return getattr(self._given, name)

    def __contains__(self, name: str) -> bool:
        """Return whether the schema has an argument of this name."""
        return hasattr(self._given, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or `default` if the schema has none of this name."""
        return getattr(self._given, name, default)

    def fake(self, name: str) -> Any:
        """Return the fake tensor of an argument."""
        return self._nodes[name].meta["val"]

    def raw(self, name: str) -> Any:
        """Return an argument as the graph has it: a node, a number, a list, None."""
        return self._nodes.get(name)

    def refusal(self, why: str) -> Unsupported:
        """Return the exception that leaves this call in PyTorch."""
        return Unsupported(self.node, why)

    def leave(self, why: str) -> None:
        """Leave this call to PyTorch, where the graph runs in it."""
        if not self.is_imported:
            raise self.refusal(why)

    @property
    def used(self) -> set[int]:
        """Return which of several results other nodes read."""
        users = (user for user in self.node.users if user.target is operator.getitem)
        return {index for user in users if isinstance(index := user.args[1], int)}

    # ------------------------------------------------------------ shapes and dtypes

    def sizes(self, sizes: Sequence[Any]) -> list[Any]:
        """Return sizes of a fake tensor as expressions of TVM."""
        return [size_in(size, self.symbols) for size in sizes]

    def stated(self, sizes: Sequence[Any]) -> list[Any]:
        """Return sizes of a fake tensor by the expressions of PyTorch, not by equal ones."""
        symbols = dict(self.symbols)
        return [size_in(size, symbols) for size in sizes]

    def shape(self, name: str | None = None) -> list[Any]:
        """Return the shape of a tensor argument, or of the result."""
        value = self.value if name is None else self.fake(name)
        return self.sizes(value.shape)

    def dtype(self, name: str | None = None) -> str:
        """Return the dtype of a tensor argument, or of the result."""
        return torch_dtype_name((self.value if name is None else self.fake(name)).dtype)

    def numbers(self, sizes: Sequence[Any]) -> list[int]:
        """Return sizes that must be known numbers; raise for symbolic ones."""
        if not all(isinstance(size, int) for size in sizes):
            raise self.refusal(f"sizes {list(sizes)} must be known")
        return list(sizes)

    # ------------------------------------------------------------ expressions

    @property
    def builder(self) -> Any:
        """Return the builder of the function."""
        return self.importer.block_builder

    def emit(self, expr: Any) -> Any:
        """Bind an expression to a variable."""
        return self.builder.emit(expr)

    def cast(self, x: Any, dtype: str) -> Any:
        """Return a tensor in another dtype."""
        return x if dtype_of(x) == dtype else self.emit(R.op.astype(x, dtype))

    def tensor(self, operand: Any, dtype: str) -> Any:
        """Return an operand in `dtype`: a tensor, a number, a symbolic size."""
        if isinstance(operand, (bool, int, float)):
            return number(operand, dtype)
        if not isinstance(operand, R.Expr) or not hasattr(type_of(operand), "ndim"):
            return self.cast(scalar(self.builder, operand), dtype)
        return self.cast(operand, dtype)

    def reshape(self, x: Any, sizes: Sequence[Any]) -> Any:
        """Return a tensor in another shape, itself if it has it; one without elements is created.

        ``relax.reshape`` reads a 0 as "the size of the operand".
        """
        if 0 in [size for size in sizes if isinstance(size, int)]:
            return self.emit(R.op.zeros(R.ShapeExpr(sizes), dtype_of(x)))
        if are_same(sizes_of(x), list(sizes)):
            return x
        return self.emit(R.op.reshape(x, R.ShapeExpr(sizes)))

    def permuted(self, x: Any, axes: Sequence[int]) -> Any:
        """Return a tensor with its axes in another order; a transpose of a transpose is one, or
        none.
        """
        before = self.builder.lookup_binding(x)
        rank = type_of(x).ndim
        order = [axis % rank for axis in axes]
        if getattr(getattr(before, "op", None), "name", "") == "relax.permute_dims":
            first = call_attr(before, "axes")
            first = list(range(rank))[::-1] if first is None else [int(axis) for axis in first]
            x, order = before.args[0], [first[axis] for axis in order]
        return x if order == list(range(rank)) else self.emit(R.op.permute_dims(x, order))

    def gradient(self, forward: Any, dy: Any, reads_result: bool = False) -> Any:
        """Differentiate a Relax call in its first argument by the package's rules.

        Parameters
        ----------
        forward : relax.Call
            The operator that was computed.
        dy : relax.Expr
            The gradient of its result.
        reads_result : bool
            Whether the rule needs the values of the result, and not only its shape.

        Returns
        -------
        relax.Expr
            The gradient, in the dtype of the first argument.
        """
        forward = self.builder.normalize(forward)
        result = self.builder.emit(forward) if reads_result else R.Var("result", type_of(forward))
        return GRADIENTS[forward.op.name](result, forward, dy, self.builder)[0]


class ImportedCall(Call):
    """A call of a program that is imported as a whole."""

    is_imported = True


def number(value: float, dtype: str) -> Any:
    """Return a number as PyTorch converts it: integers wrap around, floats are rounded."""
    if "int" in dtype and isinstance(value, int):
        value = int(np.array(value % 2**64, "uint64").astype(dtype))
    with np.errstate(over="ignore"):
        return R.const(value, dtype)


def is_tensor(x: Any) -> bool:
    """Return whether a value is an expression of one tensor."""
    found = type_of(x) if isinstance(x, R.Expr) else None
    return all(hasattr(found, name) for name in ("dtype", "shape", "ndim"))


def wide(dtype: str) -> str:
    """Return the dtype in which sums and statistics of `dtype` are computed."""
    return "float32" if dtype in HALF else dtype


def per_axis(values: Any, rank: int, default: Any = None) -> list[int]:
    """Return one number per axis, from one for all, one each, or none at all."""
    values = default if values is None or values == [] else values
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    return values * rank if len(values) == 1 else values
