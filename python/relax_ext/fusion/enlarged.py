# SPDX-License-Identifier: Apache-2.0
"""Convolutions of enlarged images read the images before they are enlarged.

A resize is linear in each plane, a 1x1 convolution without bias is linear in the channels of each
position.  So they commute, and the smaller image needs fewer products::

    conv(resize(x), w) = resize(conv(x, w))

A convolution of an image whose elements are repeated s times along an axis is a transposed
convolution of stride s, whose kernel v of k + s - 1 taps is the reversed kernel convolved with s
ones::

    conv(repeat(x, s), w, padding=p) = conv_transpose(x, v, stride=s, padding=k-1-p)

Of a 3x3 kernel and s = 2 each phase has 4 taps instead of 9.  Decoders that merge feature maps of
several sizes convolve a concatenation, which is a sum of convolutions::

    conv(concat(x0, resize(x1)), w) = conv(x0, w[:, :c0]) + conv(resize(x1), w[:, c0:])

So nothing is concatenated, and the sum is a post-op.  Rounding differs: products are summed in
another order, and sums of weights are rounded.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
from tvm.relax.expr_functor import PyExprMutator, mutator

from topi_ext import backend
from topi_ext.compat import (
    at_most,
    call_attr,
    constant_value,
    relax,
    same_size,
    simplify,
    tensor_type_of,
)
from topi_ext.fusion.resizes import repeats
from topi_ext.spec.conv import Convolution
from topi_ext.spec.geometry import Geometry

from ..ir import sizes_of
from ..op.attrs import read
from ..target import target_of
from .constants import parameters_of_load
from .patterns import Function, named

R = relax()

RESIZE = "relax.image.resize2d"
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Modes without values from outside of the image."""

DTYPES = ("float32", "float64")
"""Sums of narrower types would be rounded between the parts."""


MANY_POSITIONS = 512
"""Positions of images from which on computing weights at each call is worth it on CPUs: with 576
positions calls were 1.3 to 2.2 times as fast, with 256 between 0.8 and 2.0 times (64 and 320
channels, 3x3 and 5x5, 2 threads)."""


class Part(NamedTuple):
    """Some input channels of a convolution.

    Attributes
    ----------
    fields : list of (relax.Expr, int)
        Their images, before the resize, and the first channel of each.
    resize : relax.Call or None
        What enlarges the image, if it is computed behind the convolution of one image.
    factors : tuple of int or None
        How often each row and column is repeated, if the part becomes a transposed convolution.
    """

    fields: list[tuple[Any, int]]
    resize: Any = None
    factors: tuple[int, ...] | None = None


def read_before_enlarging(module: Any, packs_parameters: bool = False) -> Any:
    """Return `module` with convolutions moved before resizes where that saves products.

    Parameters
    ----------
    module : tvm.IRModule
    packs_parameters : bool
        Whether weights may be computed from parameters behind the attribute ``num_input``, as for
        :func:`.fuse.fuse_kernels`.
    """
    mover = _Mover(module, packs_parameters)
    for name, func in list(module.functions_items()):
        if isinstance(func, R.Function):
            mover.rewrite(name, func)
    return mover.builder_.get()


@mutator
class _Mover(PyExprMutator):  # type: ignore[misc]
    """Replaces convolutions; resizes and concatenations that nothing else reads are dead then."""

    def __init__(self, module: Any, packs_parameters: bool) -> None:
        super().__init__(module)
        self.packs_parameters = packs_parameters
        self.parts: dict[Any, list[Part]] = {}

    def rewrite(self, name: Any, func: Any) -> None:
        """Put the function into the builder's module."""
        function = Function.of(func)
        parameters = parameters_of_load(func) if self.packs_parameters else set()
        found = {call: parts_of(call, function, parameters) for call in function.values.values()}
        self.parts = {call: parts for call, parts in found.items() if parts}
        if self.parts:
            moved = R.analysis.remove_all_unused(self.visit_expr(func))
            self.builder_.update_func(name, moved)

    def visit_call_(self, call: Any) -> Any:
        """Replace a convolution by the sum of its parts."""
        if call not in self.parts:
            return super().visit_call_(call)
        weight, total = self.visit_expr(call.args[1]), None
        for part in self.parts[call]:
            result = self._computed(part, call, weight)
            emit = self.builder_.emit
            total = result if total is None else R.op.add(emit(total), emit(result))
        return total

    def _computed(self, part: Part, conv: Any, weight: Any) -> Any:
        """Return the part of a convolution."""
        emit = self.builder_.emit
        tensors = [self.visit_expr(field) for field, _ in part.fields]
        data = tensors[0] if len(tensors) == 1 else emit(R.op.concat(tensors, 1))
        weight = self._taken(weight, [(first, _channels(field)) for field, first in part.fields])
        if part.factors is not None:
            padding = [
                size - 1 - int(pad)
                for size, pad in zip(2 * sizes_of(weight)[2:], call_attr(conv, "padding"))
            ]
            spread, factors = self._spread(weight, part.factors), list(part.factors)
            return R.op.nn.conv2d_transpose(data, spread, strides=factors, padding=padding)
        result = R.Call(conv.op, [data, weight], conv.attrs)
        if part.resize is None:
            return result
        return R.Call(part.resize.op, [emit(result), *part.resize.args[1:]], part.resize.attrs)

    def _taken(self, weight: Any, ranges: list[tuple[int, int]]) -> Any:
        """Return the weights of ranges of input channels; of a constant they are a constant."""
        if len(ranges) == 1 and ranges[0][1] == sizes_of(weight)[1]:
            return weight
        value = constant_value(weight)
        if value is not None:
            array = value.numpy()
            some = [array[:, first : first + count] for first, count in ranges]
            return R.const(np.concatenate(some, 1))
        emit = self.builder_.emit
        parts = [
            emit(R.op.strided_slice(weight, [1], [first], [first + count]))
            for first, count in ranges
        ]
        return parts[0] if len(parts) == 1 else emit(R.op.concat(parts, 1))

    def _spread(self, weight: Any, factors: tuple[int, ...]) -> Any:
        """Return weights OIHW as those IOHW of the transposed convolution of repeated elements."""
        value = constant_value(weight)
        if value is not None:
            return R.const(np.ascontiguousarray(_spread(value.numpy(), factors)))
        emit = self.builder_.emit
        for axis, factor in enumerate(factors, 2):
            reverse, width = emit(R.op.flip(weight, axis)), [0] * 8
            shifted = []
            for shift in range(factor):
                width[2 * axis : 2 * axis + 2] = shift, factor - 1 - shift
                shifted.append(emit(R.op.nn.pad(reverse, width)))
            weight = reduce(lambda total, one: emit(R.op.add(total, one)), shifted)
        return emit(R.op.permute_dims(weight, [1, 0, 2, 3]))


def _spread(weight: np.ndarray, factors: tuple[int, ...]) -> np.ndarray:
    """Return the same of an array."""
    total = weight.astype("float64")
    for axis, factor in enumerate(factors, 2):
        width = [[0, 0]] * 4
        shifts = [[shift, factor - 1 - shift] for shift in range(factor)]
        padded = [np.pad(total, [*width[:axis], one, *width[axis + 1 :]]) for one in shifts]
        total = np.flip(sum(padded), axis)
    return total.transpose(1, 0, 2, 3).astype(weight.dtype)


class _Plain(NamedTuple):
    """A convolution in NCHW with steps of one position.

    Attributes
    ----------
    call : relax.Call
    problem : Convolution
    geometry : Geometry
        As the call states it.
    is_known : bool
        Whether its weights are known before the model runs.
    """

    call: Any
    problem: Convolution
    geometry: Geometry
    is_known: bool


def parts_of(call: Any, function: Function, parameters: set[Any]) -> list[Part]:
    """Return the parts of a convolution that is worth moving, else none."""
    conv = _plain(call, parameters)
    if conv is None:
        return []
    joined = named(function.only_read_by(call.args[0], call), "relax.concat")
    fields = [] if joined is None else _fields(joined)
    reader, fields = (joined, fields) if fields else (call, [call.args[0]])
    moved, kept, first = [], Part([]), 0
    for field in fields:
        resize = named(function.only_read_by(field, reader), RESIZE)
        part = None if resize is None else _moved(resize, first, conv)
        if part is None:
            kept.fields.append((field, first))
        else:
            moved.append(part)
        first += _channels(field)
    return [*moved, *([kept] if kept.fields else [])] if moved else []


def _plain(call: Any, parameters: set[Any]) -> _Plain | None:
    """Return a plain convolution, else None."""
    found = None if named(call, "relax.nn.conv2d") is None else read(call)
    if found is None or found.geometry is None:
        return None
    if len(dtypes := set(found.dtypes.values())) > 1 or dtypes - set(DTYPES):
        return None
    geometry: Geometry = found.geometry
    steps = {*geometry.stride, *geometry.dilation, geometry.groups}
    layouts = [str(call_attr(call, f"{name}_layout")) for name in ("data", "kernel", "out")]
    if steps != {1} or layouts != ["NCHW", "OIHW", "NCHW"]:
        return None
    is_known = constant_value(call.args[1]) is not None or call.args[1] in parameters
    return _Plain(call, found.problem, geometry, is_known)


def _fields(joined: Any) -> list[Any]:
    """Return the operands of a concatenation of channels; none of another concatenation."""
    axis, operands = call_attr(joined, "axis"), joined.args[0]
    is_read = axis is not None and int(axis) in (1, -3) and isinstance(operands, R.Tuple)
    return list(operands.fields) if is_read else []


def _channels(image: Any) -> int:
    return int(sizes_of(image)[1])


def _moved(resize: Any, first: int, conv: _Plain) -> Part | None:
    """Return the part of an image, from channel `first` on, that is read before `resize` enlarges
    it, else None.
    """
    if str(call_attr(resize, "layout")) != "NCHW":
        return None
    fields, geometry = [(resize.args[0], first)], conv.geometry
    if geometry.kernel == (1, 1) and not any((*geometry.pad_before, *geometry.pad_after)):
        saves = geometry.k <= _channels(resize) and _enlarges(resize)
        return Part(fields, resize) if saves else None
    factors = _factors(resize)
    if factors is None or not _saves(conv, _channels(resize), factors):
        return None
    return Part(fields, factors=factors)


def _enlarges(resize: Any) -> bool:
    """Return whether a resize is linear and its result is larger."""
    before, after = (sizes_of(one)[2:] for one in (resize.args[0], resize))
    is_linear = str(call_attr(resize, "coordinate_transformation_mode")) in COORDINATES
    is_larger = all(map(at_most, before, after)) and not all(map(same_size, before, after))
    return is_linear and is_larger


def _factors(resize: Any) -> tuple[int, ...] | None:
    """Return how often a resize repeats each row and column, else None."""
    names = "method", "coordinate_transformation_mode", "rounding_method"
    if not repeats(*(str(call_attr(resize, name)) for name in names)):
        return None
    before, after = (sizes_of(one)[2:] for one in (resize.args[0], resize))
    factors = tuple(simplify(b // a) for a, b in zip(before, after))
    is_whole = all(isinstance(factor, int) for factor in factors)
    is_whole = is_whole and all(same_size(a * f, b) for a, f, b in zip(before, factors, after))
    return factors if is_whole else None


def _saves(conv: _Plain, channels: int, factors: tuple[int, ...]) -> bool:
    """Return whether a transposed convolution of the smaller image is estimated to be faster.

    Large kernels of small images take as long as reading their weights, of which it has more.  If
    weights are not known, they are computed at each call, so images have to be large, and a GPU
    would need several launches.  If sizes are symbolic, weights have to be known, and the phases to
    have at most half of the taps.
    """
    geometry, batch = conv.geometry, conv.problem.n
    kernel, pads = geometry.kernel, (geometry.pad_before, geometry.pad_after)
    if not all(0 <= pad < size for pad, size in zip(sum(pads, ()), 2 * kernel)):
        return False
    taps = [size + factor - 1 for size, factor in zip(kernel, factors)]
    before = [size // factor for size, factor in zip(geometry.x_size, factors)]
    if not all(isinstance(size, int) for size in (batch, *before)):
        return conv.is_known and bool(2 * prod(taps) <= prod(kernel) * prod(factors))
    if not (conv.is_known or _computes_weights(conv, batch * prod(before))):
        return False
    spread = Geometry.of_conv_transpose(
        "conv2d_transpose",
        (batch, channels, *before),
        (channels, geometry.k, *taps),
        stride=factors,
        padding=[size - 1 - pad for side in pads for size, pad in zip(kernel, side)],
    )
    part = replace(geometry, c=channels)
    return _time(conv, "conv_transpose", spread) < _time(conv, "conv", part)


def _computes_weights(conv: _Plain, positions: int) -> bool:
    """Return whether computing weights at each call is worth it for images of so many positions."""
    target = target_of(tensor_type_of(conv.call))
    return target is not None and target.kind.name == "llvm" and positions >= MANY_POSITIONS


def _time(conv: _Plain, kind: str, geometry: Geometry) -> float:
    """Return the estimated time of `conv` with another geometry and packed weights."""
    problem = replace(conv.problem, kind=kind, geometry=geometry.as_rank3(), prepacked=True)
    plans = backend.plans(problem, target_of(tensor_type_of(conv.call)))
    return min((time for time, _ in plans), default=inf)
