# SPDX-License-Identifier: Apache-2.0
"""Matrix products of whole models: from a call of ``matmul`` to what it states.

Operands that are transposed, reshaped or broadcast first are read as they are stored, where letters
can say how (:mod:`.axes`, :mod:`topi_ext.product`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_lowercase
from typing import Any

import tvm

from topi_ext import backend
from topi_ext.compat import (
    call_attr,
    constant_value,
    dtype_name,
    known_shape,
    relax,
    same_size,
    tensor_type,
    tensor_type_of,
)
from topi_ext.epilogue import PostOp
from topi_ext.product import Product

from .anchor import PERMUTE, RESHAPES, kernel_name, packed
from .axes import Letters
from .patterns import Lookup, named, number_in
from .target import target_of
from .views import ViewedAnchor, in_letters

R = relax()

MATMUL = "relax.matmul"

_FLOATS = ("float16", "bfloat16", "float32", "float64")

_BATCH, _ROW, _COLUMN, _TERM = ascii_lowercase[:8], "x", "y", "z"

_X, _W, _Y = range(3)
"""Tensors of :class:`.axes.Letters`."""


def read(call: Any, lookup: Lookup) -> ProductAnchor | None:
    """Read a call of ``relax.matmul``.

    Returns
    -------
    ProductAnchor or None
        None where no kernel of ours computes it: other targets, integers, operands of unknown
        shape or of one axis, sizes of a batch that are not known to be equal, and no elements.
    """
    found = tensor_type_of(call)
    if found is None or not backend.supports("matmul", target_of(found)):
        return None
    shapes = [_shape(one) for one in (*call.args, call)]
    if any(shape is None or len(shape) < 2 for shape in shapes):
        return None
    dtypes = [dtype_name(tensor_type_of(one).dtype) for one in (*call.args, call)]
    if any(dtype not in _FLOATS for dtype in dtypes) or dtypes[0] != dtypes[1]:
        return None
    if any(isinstance(size, int) and size == 0 for shape in shapes for size in shape):
        return None
    letters = _letters(*shapes)
    if letters is None:
        return None
    return ProductAnchor(call, letters, tuple(dtypes), lookup)


def _shape(expr: Any) -> tuple[Any, ...] | None:
    found = tensor_type_of(expr)
    return None if found is None else known_shape(found.shape)


def _letters(x: Any, w: Any, y: Any) -> Letters | None:
    """A letter for each axis of the result, and one for what is summed over."""
    batch = len(y) - 2
    if batch > len(_BATCH) or not same_size(x[-1], w[-2]):
        return None
    of_y = (*_BATCH[:batch], _ROW, _COLUMN)
    sizes = {**dict(zip(of_y, y)), _TERM: x[-1]}
    made = []
    for shape, ends in ((x, (_ROW, _TERM)), (w, (_TERM, _COLUMN))):
        names = _BATCH[batch - len(shape) + 2 : batch]
        axes = []
        for size, name in zip(shape[:-2], names):
            if not (same_size(size, sizes[name]) or same_size(size, 1)):
                return None
            axes.append(name if same_size(size, sizes[name]) else "")
        made.append((*axes, *ends))
    return Letters(sizes, (*made, of_y))


class ProductAnchor(ViewedAnchor):
    """A matrix product.

    Parameters
    ----------
    call : relax.Call
    letters : Letters
        Of both operands and of the result.
    dtypes : tuple of str
    lookup : Lookup
    """

    def __init__(
        self, call: Any, letters: Letters, dtypes: tuple[str, ...], lookup: Lookup
    ) -> None:
        self.call, self.dtypes, self.lookup = call, dtypes, lookup
        self.name, self.dtype, self.shape = "matmul", dtypes[_Y], _shape(call)
        self.stored, self.factor = list(call.args), 1.0
        for number in (_X, _W):
            self.stored[number], letters = self._behind(number, letters)
        self.letters = letters

    def _behind(self, number: int, letters: Letters) -> tuple[Any, Letters]:
        """What an operand is a view of, as far back as letters reach, and these."""
        operand, factor = self.call.args[number], 1.0
        best = operand, letters
        while True:
            value = self.lookup(operand)
            if not (isinstance(value, R.Call) and isinstance(value.op, tvm.ir.Op)):
                return best
            scale = _factor(value)
            found = letters if scale is not None else _before(value, number, letters)
            if found is None:
                return best
            operand, letters, factor = value.args[0], found, factor * (scale or 1.0)
            # A view alone costs nothing.
            moves = value.op.name not in RESHAPES
            if not _is_moderate(self.factor * factor):
                return best
            if moves and self._product_of(letters, []).is_matrix_product:
                best = operand, letters
                self.factor, factor = self.factor * factor, 1.0

    def permuted(self, order: Sequence[int]) -> bool:
        """See :class:`~relax_ext.anchor.Anchor`."""
        axes = self.letters.tensors[_Y]
        turned = tuple(axes[axis] for axis in order)
        if "".join(turned)[-1:] != "".join(axes)[-1:]:
            return False  # vectors of results would be written one by one
        self.letters = self.letters.with_axes(_Y, turned)
        self.shape = tuple(self.shape[axis] for axis in order)
        return True

    def lowered(self, fuser: Any, steps: Sequence[PostOp], operands: Sequence[Any]) -> Any:
        """See :class:`~relax_ext.anchor.Anchor`."""
        emit, target = fuser.builder_.emit, target_of(tensor_type_of(self.call))
        product = self._product_of(self.letters, steps)
        x, w = (
            reshaped(emit, fuser.visit_expr(one), product.shape(order))
            for one, order in zip(self.stored, (product.x, product.w))
        )
        packing = None
        if constant_value(self.stored[_W]) is not None:
            packing, kernel = backend.prepack(product, target)
        else:
            kernel = backend.build(product, target)
        if packing is not None:
            w = packed(fuser, packing, w, self.name)
        orders = [step.order for step in product.epilogue if step.order]
        others = [reshaped(emit, one, product.shape(a)) for one, a in zip(operands, orders)]
        sizes = product.shape(product.y)
        made = R.call_tir(
            fuser.builder_.add_func(kernel, kernel_name(self.name, steps)),
            [x, w, *others],
            tensor_type(R.ShapeExpr(sizes), self.dtype, len(sizes)),
        )
        return reshaped(emit, emit(made), self.shape)

    def _product_of(self, letters: Letters, steps: Sequence[PostOp]) -> Product:
        """What is built; steps name the letters that their operands vary along, no others."""
        first = () if self.factor == 1.0 else (PostOp("multiply", value=self.factor),)
        behind = (*first, *in_letters(steps, letters, before=len(first)))
        x, w, y = ("".join(axes) for axes in letters.tensors)
        sizes = tuple(letters.sizes.items())
        return Product(sizes, x, w, y, self.dtypes, behind).merged()


_MODERATE = 2.0**8


def _is_moderate(factor: float) -> bool:
    """Whether sums may be multiplied by a factor instead of an operand.

    The range of finite sums then changes by the factor.  Attention's ``1 / sqrt(head size)`` is
    inside of these limits.
    """
    return 1 / _MODERATE <= abs(factor) <= _MODERATE


def _factor(value: Any) -> float | None:
    """The number by which a call multiplies a tensor, which may as well be done to sums."""
    scaled = named(value, "relax.multiply")
    if scaled is None or _shape(scaled.args[0]) != _shape(scaled):
        return None
    return number_in(scaled.args[1]) or None


def _before(value: Any, number: int, letters: Letters) -> Letters | None:
    """Of an operand's letters, those of what `value`, a call that gives it, views; None of calls
    that do something else, and of those that letters do not reach behind."""
    name, shape = str(value.op.name), _shape(value.args[0]) if value.args else None
    if shape is None:
        return None
    if name == PERMUTE:
        count, axes = len(shape), call_attr(value, "axes")
        order = [int(a) % count for a in axes] if axes else list(reversed(range(count)))
        return letters.permuted(number, order)
    if name == "relax.broadcast_to":
        return letters.broadcast(number, shape, kept=letters.current(_ROW + _COLUMN + _TERM))
    return letters.reshaped(number, shape) if name in RESHAPES else None


def reshaped(emit: Callable[[Any], Any], value: Any, shape: Sequence[Any]) -> Any:
    """A tensor in another shape, which costs nothing; itself where it has that."""
    known = _shape(value)
    same = known is not None and len(known) == len(shape)
    if same and all(same_size(a, b) for a, b in zip(known, shape)):
        return value
    return emit(R.op.reshape(value, R.ShapeExpr(shape)))
