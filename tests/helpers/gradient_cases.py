# SPDX-License-Identifier: Apache-2.0
"""Calls of operators around convolutions with random arguments, beside PyTorch's of the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from tvm import relax
from tvm.relax import op

from helpers.torch_draws import Draw
from topi_ext.compat import dtype_name, type_of


@dataclass(frozen=True)
class GradientCase:
    """A function of tensors in Relax and in PyTorch.

    `tensors` are float64, and rounded to `dtype`, one that TVM lowers the operator in.
    """

    tensors: tuple[torch.Tensor, ...]
    ours: Callable[..., Any]
    theirs: Callable[..., torch.Tensor]
    dtype: str = "float64"
    relative: float | None = None

    @property
    def tolerance(self) -> float:
        """Return the maximum error, relative to the largest element of a gradient.

        Sums of at most a few hundred products: float64 1e-12, float32 3e-5 for norms, whose sums
        cancel.  Constants in TVM's own lowering of float32 are stated as `relative`.
        """
        return self.relative or {"float64": 1e-12, "float32": 3e-5}[self.dtype]


Drawn = Callable[[Draw], GradientCase]


def values(draw: Draw, *shape: int, positive: bool = False) -> torch.Tensor:
    """Normal numbers; no two are equal, none is zero."""
    numbers = draw.normal(*shape, dtype=torch.float64) / 2
    return numbers.abs() + 0.25 if positive else numbers


def dtype_of(expr: Any) -> str:
    return dtype_name(type_of(expr).dtype)


def constant(array: Any, like: Any = None) -> Any:
    """A constant, of the dtype of a tensor where one is given."""
    array = np.asarray(array)
    return relax.const(array, str(array.dtype) if like is None else dtype_of(like))


def element(
    ours: Callable[..., Any],
    theirs: Callable[..., torch.Tensor],
    rank: int = 3,
    operands: int = 1,
    positive: bool = False,
    **options: Any,
) -> Drawn:
    """A function of elements, of tensors of one random shape."""

    def drawn(draw: Draw) -> GradientCase:
        shape = draw.shape(rank)
        tensors = tuple(values(draw, *shape, positive=positive) for _ in range(operands))
        return GradientCase(tensors, ours, theirs, **options)

    return drawn


def unit(ours: Callable[..., Any], theirs: Callable[..., torch.Tensor], shift: float = 0) -> Drawn:
    """A function of numbers inside (-0.9, 0.9), and `shift`."""
    return lambda draw: GradientCase(
        (draw.unit(*draw.shape(2)).double() * 0.9 + shift,), ours, theirs
    )


# ---------------------------------------------------------------- norms


def batch_norm(training: bool, **flags: bool) -> Drawn:
    def ours(x: Any, *rest: Any) -> Any:
        call = op.nn.batch_norm(x, *rest, 1, 1e-3, training=training, **flags)
        return relax.TupleGetItem(call, 0)

    def theirs(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> torch.Tensor:
        gamma = gamma if flags.get("scale", True) else None
        beta = beta if flags.get("center", True) else None
        shape = [1, -1] + [1] * (x.ndim - 2)
        if training:
            unused = 0 * (mean + variance).reshape(shape)
            return F.batch_norm(x, None, None, gamma, beta, True, eps=1e-3) + unused
        y = (x - mean.reshape(shape)) / (variance.reshape(shape) + 1e-3).sqrt()
        y = y if gamma is None else y * gamma.reshape(shape)
        return y if beta is None else y + beta.reshape(shape)

    def drawn(draw: Draw) -> GradientCase:
        x = values(draw, *draw.shape(draw.int(3, 5)))
        vectors = [values(draw, x.shape[1], positive=True) for _ in range(4)]
        return GradientCase((x, *vectors), ours, theirs)

    return drawn


def layer_norm(axes: int) -> Drawn:
    def drawn(draw: Draw) -> GradientCase:
        # Of two elements the gradient is zero but for epsilon: all digits cancel.
        x = values(draw, *draw.shape(3), draw.int(5, 9))
        normalized = x.shape[-axes:]
        return GradientCase(
            (x, values(draw, *normalized), values(draw, *normalized)),
            lambda x, g, b: op.nn.layer_norm(x, g, b, list(range(-axes, 0))),
            lambda x, g, b: F.layer_norm(x, normalized, g, b),
            "float32",
        )

    return drawn


def rms_norm(draw: Draw) -> GradientCase:
    x = values(draw, *draw.shape(3))
    return GradientCase(
        (x, values(draw, x.shape[-1])),
        lambda x, g: op.nn.rms_norm(x, g, [-1], 1e-5),
        lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-5),
        "float32",
    )


def instance_norm(with_batch: bool) -> Drawn:
    def theirs(x: Any, gamma: Any, beta: Any) -> torch.Tensor:
        if with_batch:
            return F.batch_norm(x, None, None, gamma, beta, True)
        return F.instance_norm(x, weight=gamma, bias=beta)

    def drawn(draw: Draw) -> GradientCase:
        x = values(draw, *draw.shape(4))
        axes = [0, 2, 3] if with_batch else [2, 3]
        return GradientCase(
            (x, values(draw, x.shape[1]), values(draw, x.shape[1])),
            lambda x, g, b: op.nn.instance_norm(x, g, b, 1, axes),
            theirs,
            "float32",
        )

    return drawn


def group_norm(draw: Draw) -> GradientCase:
    groups, inner = draw.int(1, 3), draw.int(1, 3)
    x = values(draw, draw.int(1, 3), groups * inner, draw.int(3, 5), draw.int(3, 7))
    return GradientCase(
        (x, values(draw, groups * inner), values(draw, groups * inner)),
        lambda x, g, b: op.nn.group_norm(x, g, b, groups, 1, [2, 3]),
        lambda x, g, b: F.group_norm(x, groups, g, b),
        "float32",
    )


def norm_of_axes(axes: Sequence[int], *, mean: bool = True, **flags: bool) -> Drawn:
    """A layer norm, or an RMS norm without `mean`; weights have the axes in the order of `axes`."""

    def ours(x: Any, gamma: Any, beta: Any = None) -> Any:
        if mean:
            return op.nn.layer_norm(x, gamma, beta, list(axes), **flags)
        return op.nn.rms_norm(x, gamma, list(axes))

    def theirs(x: Any, gamma: Any, beta: Any = None) -> torch.Tensor:
        y = x - x.mean(axes, keepdim=True) if mean else x
        y = y / (y.square().mean(axes, keepdim=True) + 1e-5).sqrt()
        order = [*(axis for axis in range(x.ndim) if axis not in axes), *axes]
        y = y.permute(order)
        y = y * gamma if flags.get("scale", True) else y
        y = y + beta if mean and flags.get("center", True) else y
        return y.permute([order.index(axis) for axis in range(x.ndim)])

    def drawn(draw: Draw) -> GradientCase:
        x = values(draw, 2, draw.int(5, 9), 3, draw.int(5, 9))
        weights = [values(draw, *(x.shape[axis] for axis in axes)) for _ in range(1 + mean)]
        return GradientCase((x, *weights), ours, theirs, "float32")

    return drawn


def norm_of_channels(groups: int, **flags: bool) -> Drawn:
    """A group norm, or an instance norm of no groups, with channels last."""

    def drawn(draw: Draw) -> GradientCase:
        x = values(draw, 2, 3, draw.int(3, 5), 6)
        name, stated = ("group_norm", [groups]) if groups else ("instance_norm", [])

        def theirs(x: Any, gamma: Any, beta: Any) -> torch.Tensor:
            y = F.group_norm(x.movedim(-1, 1), groups or 6).movedim(1, -1)
            y = y * gamma if flags.get("scale", True) else y
            return y + beta if flags.get("center", True) else y

        return GradientCase(
            (x, values(draw, 6), values(draw, 6)),
            lambda x, g, b: getattr(op.nn, name)(x, g, b, *stated, 3, [1, 2], **flags),
            theirs,
            "float32",
        )

    return drawn


NORMS: dict[str, Drawn] = {
    "layer_norm of axes in another order": norm_of_axes((3, 1)),
    "layer_norm without scale": norm_of_axes((3, 2), scale=False),
    "layer_norm of inner axes without shift": norm_of_axes((1, 2), center=False),
    "rms_norm of axes in another order": norm_of_axes((3, 2), mean=False),
    "rms_norm of inner axes": norm_of_axes((1,), mean=False),
    "group_norm without scale": norm_of_channels(2, scale=False),
    "instance_norm without shift": norm_of_channels(0, center=False),
    "batch_norm of a batch": batch_norm(True),
    "batch_norm of a batch, no gamma": batch_norm(True, scale=False),
    "batch_norm of given statistics": batch_norm(False),
    "batch_norm of given statistics, no beta": batch_norm(False, center=False),
    "layer_norm of one axis": layer_norm(1),
    "layer_norm of two axes": layer_norm(2),
    "rms_norm": rms_norm,
    "instance_norm": instance_norm(False),
    "instance_norm of a batch too": instance_norm(True),
    "group_norm": group_norm,
}

# ---------------------------------------------------------------- elements


def prelu(single: bool) -> Drawn:
    def drawn(draw: Draw) -> GradientCase:
        x = values(draw, *draw.shape(3))
        alpha = values(draw, 1 if single else x.shape[1])
        return GradientCase((x, alpha), lambda x, a: op.nn.prelu(x, a, 1), F.prelu)

    return drawn


def softplus(draw: Draw) -> GradientCase:
    beta, threshold = draw.real(), draw.real()
    return GradientCase(
        (values(draw, *draw.shape(3)),),
        lambda x: op.nn.softplus(x, beta, threshold),
        lambda x: F.softplus(x, beta, threshold),
    )


def power(exponent: float) -> Drawn:
    return element(
        lambda x: op.power(x, constant(exponent, x)),
        lambda x: x**exponent,
        positive=exponent != int(exponent),
    )


def clip(low: float, high: float) -> Drawn:
    return element(lambda x: op.clip(x, low, high), lambda x: x.clamp(low, high))


TVM_ERF = 1e-6
"""TVM's own erf of float64 is accurate to about seven digits; the loss is compared too."""

ACTIVATIONS: dict[str, Drawn] = {
    "relu": element(op.nn.relu, F.relu),
    "leakyrelu": element(lambda x: op.nn.leakyrelu(x, 0.2), lambda x: F.leaky_relu(x, 0.2)),
    "prelu of channels": prelu(False),
    "prelu of all": prelu(True),
    "gelu": element(op.nn.gelu, F.gelu, relative=TVM_ERF),
    "gelu_tanh": element(op.nn.gelu_tanh, partial(F.gelu, approximate="tanh")),
    "softplus": softplus,
    "selu": element(op.nn.selu, F.selu, relative=1e-6),  # TVM's constants are float32
}

ARITHMETIC: dict[str, Drawn] = {
    "abs": element(op.abs, torch.abs),
    "acos": unit(op.acos, torch.acos),
    "acosh": unit(op.acosh, torch.acosh, 2.5),
    "asin": unit(op.asin, torch.asin),
    "asinh": unit(op.asinh, torch.asinh),
    "astype": element(
        lambda x: op.astype(op.astype(x, "float32"), "float64"), lambda x: x * 1, relative=1e-7
    ),
    "atan": unit(op.atan, torch.atan),
    "atanh": unit(op.atanh, torch.atanh),
    "atan2": element(op.atan2, torch.atan2, operands=2),
    "clip": clip(-0.5, 0.75),
    "clip from below": clip(0.0, float("inf")),
    "cosh": unit(op.cosh, torch.cosh),
    "erf": element(op.erf, torch.erf, relative=TVM_ERF),
    "floor_mod": element(op.floor_mod, torch.remainder, operands=2),
    "log_add_exp": element(op.log_add_exp, torch.logaddexp, operands=2),
    "maximum": element(op.maximum, torch.maximum, operands=2),
    "minimum": element(op.minimum, torch.minimum, operands=2),
    "mod": element(op.mod, torch.fmod, operands=2, positive=True),
    "rsqrt": element(op.rsqrt, torch.rsqrt, positive=True),
    "sinh": unit(op.sinh, torch.sinh),
    "square": element(op.square, torch.square),
    "tan": unit(op.tan, torch.tan),
    "power of tensors": element(op.power, torch.pow, operands=2, positive=True),
    **{f"power {p}": power(p) for p in (0.0, 0.5, 1.0, 2.0, 3.0, -1.0, 1.5)},
    "where": lambda draw: (
        lambda shape: GradientCase(
            (values(draw, *shape), values(draw, shape[-1])),
            lambda x, y: op.where(op.greater(x, constant(0.1, x)), op.multiply(x, x), y),
            lambda x, y: torch.where(x > 0.1, x * x, y),
        )
    )(draw.shape(3)),
}

# ---------------------------------------------------------------- reductions


def reduction(name: str, theirs: Callable[..., torch.Tensor]) -> Drawn:
    """Over random axes, kept or not, some of them counted from the end."""

    def drawn(draw: Draw) -> GradientCase:
        x = values(draw, *draw.shape(4))
        axes = sorted(draw.random.sample(range(4), draw.int(1, 4)))
        stated = [axis - 4 * draw.int(0, 1) for axis in axes]
        keeps = draw.pick(True, False)
        return GradientCase(
            (x,),
            lambda x: getattr(op, name)(x, stated, keeps),
            lambda x: theirs(x, axes, keepdim=keeps),
        )

    return drawn


def cumsum(axis: int | None, exclusive: bool) -> Drawn:
    def theirs(x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten() if axis is None else x
        sums = flat.cumsum(axis or 0)
        return sums - flat if exclusive else sums

    return element(lambda x: op.cumsum(x, axis, exclusive=exclusive), theirs)


REDUCTIONS: dict[str, Drawn] = {
    "max": reduction("max", torch.amax),
    "min": reduction("min", torch.amin),
    "max of all": element(op.max, torch.amax),
    "mean": reduction("mean", torch.mean),
    "std": reduction("std", partial(torch.std, unbiased=False)),
    "variance": reduction("variance", partial(torch.var, unbiased=False)),
    "collapse_sum_to": element(
        lambda x: op.collapse_sum_to(x, relax.ShapeExpr([1, type_of(x).shape[2]])),
        lambda x: x.sum((0, 1))[None],
    ),
    "cumsum": cumsum(1, False),
    "cumsum, exclusive": cumsum(-1, True),
    "cumsum of all": cumsum(None, False),
}

# ---------------------------------------------------------------- shapes


def strided_slice(draw: Draw) -> GradientCase:
    """Any steps on two of three axes, backwards too."""
    x = values(draw, *(draw.int(4, 9) for _ in range(3)))
    axes = sorted(draw.random.sample(range(3), 2))
    begins, ends, steps = [], [], []
    slices: list[Any] = [slice(None)] * 3
    for axis in axes:
        size, step = x.shape[axis], draw.pick(1, 1, 2, 3, -1, -2)
        low, high = sorted(draw.random.sample(range(size + 1), 2))
        begin, end = (low, high) if step > 0 else (high - 1, low - 1 if low else -size - 1)
        begins.append(begin - size * draw.int(0, 1) if step > 0 else begin)
        ends.append(end)
        steps.append(step)
        slices[axis] = np.arange(size)[low:high:step] if step > 0 else np.arange(low, high)[::step]
    theirs = lambda x: x[np.ix_(*(np.arange(n)[s] for n, s in zip(x.shape, slices)))]  # noqa: E731
    return GradientCase((x,), lambda x: op.strided_slice(x, axes, begins, ends, steps), theirs)


def pad(mode: str, torch_mode: str) -> Drawn:
    def drawn(draw: Draw) -> GradientCase:
        x = values(draw, 2, 2, draw.int(4, 6), draw.int(4, 6))
        top, bottom, left, right = (draw.int(0, 3) for _ in range(4))
        value = {"value": 0.5} if torch_mode == "constant" else {}
        return GradientCase(
            (x,),
            lambda x: op.nn.pad(
                x, [0] * 4 + [top, bottom, left, right], pad_mode=mode, pad_value=0.5
            ),
            lambda x: F.pad(x, (left, right, top, bottom), torch_mode, **value),
        )

    return drawn


def tile(draw: Draw) -> GradientCase:
    repeats = [draw.int(1, 3) for _ in range(draw.int(2, 4))]
    rank = draw.int(1, len(repeats))
    return GradientCase(
        (values(draw, *draw.shape(rank)),),
        lambda x: op.tile(x, repeats),
        lambda x: x.repeat(*repeats),
    )


def repeat(axis: int | None) -> Drawn:
    return element(lambda x: op.repeat(x, 3, axis), lambda x: x.repeat_interleave(3, axis), rank=3)


def flattened(draw: Draw) -> GradientCase:
    a, b, c = draw.shape(3)
    return GradientCase(
        (values(draw, a, 1, b, c),),
        lambda x: op.flatten(op.flip(op.nn.batch_flatten(op.squeeze(x, [1])), 1)),
        lambda x: x.squeeze(1).flatten(1).flip(1).flatten(),
    )


def concat(draw: Draw) -> GradientCase:
    a, b, c = draw.shape(3)
    return GradientCase(
        (values(draw, a, b), values(draw, a, c)),
        lambda x, y: op.concat([op.concat([x, y], -1)], 0),
        lambda x, y: torch.cat([x, y], 1),
    )


SHAPES: dict[str, Drawn] = {
    "strided_slice": strided_slice,
    "strided_slice, another": strided_slice,
    "pad, constant": pad("constant", "constant"),
    "pad, reflect": pad("reflect", "reflect"),
    "pad, replicate": pad("replicate", "replicate"),
    "pad, circular": pad("circular", "circular"),
    "tile": tile,
    "repeat": repeat(1),
    "repeat of all": repeat(None),
    "flatten, flip, batch_flatten, squeeze": flattened,
    "stack": element(lambda *x: op.stack(x, -1), lambda *x: torch.stack(x, -1), operands=3),
    "stack of one": element(lambda x: op.stack([x], 0), lambda x: x[None]),
    "concat": concat,
    "tril": element(lambda x: op.tril(x, -1), lambda x: x.tril(-1)),
    "triu": element(lambda x: op.triu(x, 1), lambda x: x.triu(1)),
}

# ---------------------------------------------------------------- indices, products


def indices(draw: Draw, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=draw.generator)


def gather_elements(single: bool) -> Drawn:
    def drawn(draw: Draw) -> GradientCase:
        a, b, c = draw.shape(3)
        index = indices(draw, b, a, 1 if single else draw.int(2, 9), c)
        return GradientCase(
            (values(draw, a, b, c),),
            lambda x: op.gather_elements(x, constant(index), 1),
            lambda x: x.gather(1, index),
        )

    return drawn


def gather_nd(draw: Draw) -> GradientCase:
    a, b, c = draw.shape(3)
    rows, columns = indices(draw, a, 7), indices(draw, b, 7)
    return GradientCase(
        (values(draw, a, b, c),),
        lambda x: op.gather_nd(x, constant(torch.stack([rows, columns], 1))),
        lambda x: x[rows, columns],
    )


def index_tensor(draw: Draw) -> GradientCase:
    a, b, c = draw.shape(3)
    rows, columns = indices(draw, a, 7), indices(draw, b, 7)
    return GradientCase(
        (values(draw, a, b, c),),
        lambda x: op.index_tensor(x, [constant(rows), constant(columns)]),
        lambda x: x[rows, columns],
    )


def take(axis: int, mode: str) -> Drawn:
    """Indices of rank 2, some of them outside the axis where `mode` says what that means."""

    def drawn(draw: Draw) -> GradientCase:
        sizes = draw.shape(3)
        size = sizes[axis]
        index = indices(draw, size, 4, 3)
        if mode != "fast":
            index = indices(draw, 3 * size, 4, 3) - size
        read = index % size if mode == "wrap" else index.clip(0, size - 1)
        is_read = ((index == read) | (mode != "nan")).reshape(4, 3, *[1] * (2 - axis))

        def ours(x: Any) -> Any:
            y = op.take(x, constant(index.numpy()), axis, mode)
            return op.where(constant(is_read.numpy()), y, constant(0.0, x))

        def theirs(x: torch.Tensor) -> torch.Tensor:
            y = x.index_select(axis, read.flatten())
            return y.reshape(*sizes[:axis], 4, 3, *sizes[axis + 1 :]) * is_read.double()

        return GradientCase((values(draw, *sizes),), ours, theirs)

    return drawn


def take_of_a_vector(draw: Draw) -> GradientCase:
    x = values(draw, draw.int(3, 9))
    index = indices(draw, len(x), 5)
    return GradientCase((x,), lambda x: op.take(x, constant(index.numpy())), lambda x: x[index])


def scatter_elements(reduction: str) -> Drawn:
    def drawn(draw: Draw) -> GradientCase:
        a, b = draw.shape(2)
        index = torch.stack([torch.randperm(b, generator=draw.generator) for _ in range(a)])
        theirs = torch.scatter_add if reduction == "add" else torch.scatter
        return GradientCase(
            (values(draw, a, b), values(draw, a, b - 1)),
            lambda x, y: op.scatter_elements(x, constant(index[:, 1:].numpy()), y, 1, reduction),
            lambda x, y: theirs(x, 1, index[:, 1:], y),
        )

    return drawn


def einsum(equation: str) -> Drawn:
    def drawn(draw: Draw) -> GradientCase:
        terms = equation.partition("->")[0].split(",")
        sizes = {letter: draw.int(2, 5) for letter in equation}
        tensors = tuple(values(draw, *(sizes[letter] for letter in term)) for term in terms)
        return GradientCase(
            tensors, lambda *x: op.einsum(x, equation), lambda *x: torch.einsum(equation, *x)
        )

    return drawn


INDEXING: dict[str, Drawn] = {
    "gather_elements, one each": gather_elements(True),
    "gather_elements": gather_elements(False),
    "gather_nd": gather_nd,
    "index_tensor": index_tensor,
    "take, rows": take(0, "fast"),
    "take, wrap": take(1, "wrap"),
    "take, clip": take(2, "clip"),
    "take, nan": take(0, "nan"),
    "take of a vector": take_of_a_vector,
    "scatter_elements, add": scatter_elements("add"),
    "scatter_elements, update": scatter_elements("update"),
    **{
        f"einsum {equation}": einsum(equation)
        for equation in ("bij,bjk->bik", "ij,kj", "ij,j->i", "i,ik,k->", "ijk->ki", "ij->ji")
    },
    "outer": lambda draw: GradientCase(
        (values(draw, draw.int(2, 5)), values(draw, draw.int(2, 5))), op.outer, torch.outer
    ),
    "full": lambda draw: GradientCase(
        (values(draw, 1).reshape(()),), lambda x: op.full((3, 2), x), lambda x: x.expand(3, 2)
    ),
    "full_like": lambda draw: GradientCase(
        (values(draw, 1).reshape(()), values(draw, 2, 3)),
        lambda x, y: op.multiply(op.full_like(y, x), y),
        lambda x, y: x * y,
    ),
}

# ---------------------------------------------------------------- pooling, resizing

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def pool(kind: str, rank: int, channels_last: bool = False) -> Drawn:
    """Any window; max pooling may be dilated."""

    def drawn(draw: Draw) -> GradientCase:
        def axes(low: int, high: int) -> list[int]:
            return [draw.int(low, high) for _ in range(rank)]

        sizes = axes(5, 9)
        kernel, stride = axes(1, 3), axes(1, 3)
        padding = [draw.int(0, one // 2) for one in kernel]
        options: dict[str, Any] = {"ceil_mode": draw.pick(True, False)}
        layout = "N" + _SPATIAL[rank] + "C" if channels_last else "NC" + _SPATIAL[rank]
        order = [0, *range(2, rank + 2), 1] if channels_last else list(range(rank + 2))
        back = [order.index(axis) for axis in range(rank + 2)]
        ours = {"padding": [*padding, *padding], "layout": layout, **options}
        if kind == "max":
            options["dilation"] = axes(1, 2)
            ours["dilation"] = options["dilation"]
        else:
            options["count_include_pad"] = draw.pick(True, False)
            ours["count_include_pad"] = options["count_include_pad"]
        theirs = getattr(F, f"{kind}_pool{rank}d")
        return GradientCase(
            (values(draw, 2, 3, *sizes),),
            lambda x: op.permute_dims(
                getattr(op.nn, f"{kind}_pool{rank}d")(
                    op.permute_dims(x, order), kernel, stride, **ours
                ),
                back,
            ),
            lambda x: theirs(x, kernel, stride, padding, **options),
        )

    return drawn


def blocks(draw: Draw) -> GradientCase:
    """Windows that are blocks; many elements are equal."""
    kernel, counts = [draw.int(1, 3), 2], [draw.int(1, 3) for _ in range(2)]
    x = values(draw, 2, 3, *(k * n for k, n in zip(kernel, counts)))
    return GradientCase(
        (x.round(),),
        lambda x: op.nn.max_pool2d(x, kernel, kernel),
        lambda x: F.max_pool2d(x, kernel),
    )


def equal_elements(draw: Draw) -> GradientCase:
    """Overlapping windows; many elements are equal."""
    return GradientCase(
        (values(draw, 2, 3, *draw.shape(2)).round(),),
        lambda x: op.nn.max_pool2d(x, [3, 2], [1, 1], [1, 1, 1, 1]),
        lambda x: F.max_pool2d(x, (3, 2), 1, 1),
    )


def adaptive(rank: int) -> Drawn:
    def drawn(draw: Draw) -> GradientCase:
        sizes = [draw.int(3, 8) for _ in range(rank)]
        cells = [draw.pick(1, size, draw.int(1, size)) for size in sizes]
        return GradientCase(
            (values(draw, 2, 3, *sizes),),
            lambda x: getattr(op.nn, f"adaptive_avg_pool{rank}d")(
                x, cells, layout="NC" + _SPATIAL[rank]
            ),
            lambda x: getattr(F, f"adaptive_avg_pool{rank}d")(x, cells),
        )

    return drawn


def resize(
    mode: str, how: tuple[str, str, str], factors: Sequence[float], layout: str = "NCHW",
    **options: Any,
) -> Drawn:  # fmt: skip
    method, transformation, rounding = how

    def drawn(draw: Draw) -> GradientCase:
        rank = len(factors)
        before = [draw.int(3, 6) for _ in range(rank)]
        after = [max(1, int(size * factor)) for size, factor in zip(before, factors)]
        order = [layout.index(letter) for letter in "NC" + _SPATIAL[rank]]
        stored = [order.index(axis) for axis in range(rank + 2)]
        return GradientCase(
            (values(draw, 2, 3, *before),),
            lambda x: op.permute_dims(
                getattr(op.image, f"resize{rank}d")(
                    op.permute_dims(x, stored), after, layout=layout, method=method,
                    coordinate_transformation_mode=transformation, rounding_method=rounding,
                    cubic_alpha=-0.75,
                ),
                order,
            ),
            lambda x: F.interpolate(x, after, mode=mode, **options),
            relative=1e-6,  # TVM reads images and computes coordinates in float32
        )  # fmt: skip

    return drawn


_NEAREST = ("nearest_neighbor", "asymmetric", "floor")
_LINEAR = ("linear", "half_pixel", "")

POOLING: dict[str, Drawn] = {
    **{f"{kind}_pool{rank}d": pool(kind, rank) for kind in ("max", "avg") for rank in (1, 2, 3)},
    **{f"{kind}_pool2d, NHWC": pool(kind, 2, True) for kind in ("max", "avg")},
    **{f"{kind}_pool2d, another": pool(kind, 2) for kind in ("max", "avg")},
    "max_pool2d of blocks": blocks,
    "max_pool2d of equal elements": equal_elements,
    **{f"adaptive_avg_pool{rank}d": adaptive(rank) for rank in (1, 2, 3)},
}

RESIZING: dict[str, Drawn] = {
    "nearest by 2 and 3": resize("nearest", _NEAREST, (2, 3)),
    "nearest by others": resize("nearest", _NEAREST, (1.7, 0.6)),
    "nearest-exact": resize(
        "nearest-exact", ("nearest_neighbor", "half_pixel", "round_prefer_ceil"), (0.5, 1.4)
    ),
    "bilinear": resize("bilinear", _LINEAR, (2, 0.7)),
    "bilinear, NHWC": resize("bilinear", _LINEAR, (1.5, 2), "NHWC"),
    "bilinear, corners": resize(
        "bilinear", ("linear", "align_corners", ""), (1.8, 2), align_corners=True
    ),
    "bicubic": resize("bicubic", ("cubic", "half_pixel", ""), (2, 1.6)),
    "nearest of volumes": resize("nearest", _NEAREST, (2, 1, 1.5), "NCDHW"),
    "trilinear": resize("trilinear", _LINEAR, (2, 1.5, 0.7), "NCDHW"),
}

# ---------------------------------------------------------------- attention


def attention(
    causal: str | None = None, bias: bool = False, hides: bool = False, more_queries: bool = False
) -> Drawn:
    """Attention; `hides`: the bias hides all keys of one query, which gives zeros."""

    def drawn(draw: Draw) -> GradientCase:
        (m, n), heads = sorted([draw.int(2, 6), draw.int(2, 6)], reverse=more_queries), 2
        q, k = (values(draw, 2, size, heads, 4) for size in (m, n))
        tensors = [q, k, values(draw, 2, n, heads, 3)]
        if bias:
            tensors.append(values(draw, draw.pick(1, 2), 1, m, n))
        if hides:
            tensors[3][:, :, 0] = -torch.inf
        last = {"TopLeft": 0, "BottomRight": abs(n - m)}.get(causal or "", n)
        read = torch.ones(m, n, dtype=torch.bool).tril(last)

        def theirs(q: Any, k: Any, v: Any, mask: Any = 0) -> torch.Tensor:
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
            scores = (q @ k.mT * 0.7 + mask).masked_fill(~read, -torch.inf)
            hidden = (scores == -torch.inf).all(-1, keepdim=True)
            weights = scores.masked_fill(hidden, 0).softmax(-1).masked_fill(hidden, 0)
            return (weights @ v).transpose(1, 2)

        def ours(*operands: Any) -> Any:
            return op.nn.attention(*operands, scale=0.7, causal_mask=causal)

        return GradientCase(tuple(tensors), ours, theirs)

    return drawn


ATTENTION: dict[str, Drawn] = {
    "attention": attention(),
    "attention, more queries": attention(more_queries=True),
    "attention, bias": attention(bias=True),
    "attention, hidden query": attention(bias=True, hides=True),
    "attention, top left": attention("TopLeft", bias=True),
    "attention, bottom right": attention("BottomRight"),
    "attention, bottom right, more queries": attention("BottomRight", more_queries=True),
}

FAMILIES: dict[str, dict[str, Drawn]] = {
    "attention": ATTENTION,
    "norms": NORMS,
    "activations": ACTIVATIONS,
    "arithmetic": ARITHMETIC,
    "reductions": REDUCTIONS,
    "shapes": SHAPES,
    "indexing": INDEXING,
    "pooling": POOLING,
    "resizing": RESIZING,
}
