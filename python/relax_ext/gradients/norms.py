# SPDX-License-Identifier: Apache-2.0
"""Gradients of normalizations: batch, layer, group, instance and RMS norm.

``y = (x - mean) r gamma + beta`` with ``r = 1 / sqrt(variance + epsilon)``.  With sums over the n
elements that share a mean, the gradient in x is (Ioffe and Szegedy, 2015, section 3)

    dx = dy gamma r  -  r/n sum(gamma dy)  -  (x - mean) r^3/n sum(gamma dy (x - mean))

Over axes along which neither the statistics nor gamma vary, ``a = sum dy`` and ``b = sum dy (x -
mean)`` give all three gradients, ``dgamma = b r`` and ``dbeta = a`` among them.  So dy and x are
read for a, for b, and for dx.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import Any

from topi_ext.compat import call_attr, relax
from topi_ext.spec.geometry import fail

from ..op.norms import explicit
from .parts import (
    Rule,
    axes_of,
    const,
    float_attr,
    in_float32,
    is_zero,
    mean,
    op_name,
    positive_axis,
    reshaped,
    shape_of,
    share,
    spread,
    total,
    without_zeros,
    zeros_like,
)

R = relax()
op = R.op


@dataclass(frozen=True)
class Norm:
    """A normalization by the statistics of its data.

    Attributes
    ----------
    x, gamma : relax.Expr
        The data, and the factors in the rank of the data, None where all of them are one.
    statistics : list of int
        Axes that mean and variance reduce.
    constant : list of int
        Axes along which gamma does not vary.
    epsilon : float
    """

    x: Any
    gamma: Any
    statistics: list[int]
    constant: list[int]
    epsilon: float

    def scaled(self, expr: Any) -> Any:
        """Return `expr` times gamma."""
        return expr if self.gamma is None else op.multiply(expr, self.gamma)

    def gradients(self, dy: Any, bb: Any) -> tuple[Any, Any, Any]:
        """Return the gradients of x, gamma and beta, the last two in the rank of x."""
        x = self.x
        average = bb.emit(mean(x, self.statistics, bb))
        deviation = op.subtract(x, average)
        variance = mean(op.multiply(deviation, deviation), self.statistics, bb)
        r = bb.emit(_reciprocal_root(variance, x, self.epsilon))
        # `x - average` above is another expression: what two operators read would be stored.
        centered = op.add(x, bb.emit(op.negative(average)))
        if set(self.statistics) & set(self.constant):
            return self._by_shared_sums(dy, centered, average, r, bb)
        return self._by_rows(dy, centered, r, bb)

    def _by_shared_sums(
        self, dy: Any, centered: Any, average: Any, r: Any, bb: Any
    ) -> tuple[Any, Any, Any]:
        shared = sorted(set(self.statistics) & set(self.constant))
        other_statistics = sorted(set(self.statistics) - set(shared))
        other_constant = sorted(set(self.constant) - set(shared))
        a = bb.emit(total(dy, shared, bb))
        b = bb.emit(total(op.multiply(dy, centered), shared, bb))
        portion = share(self.x, self.statistics, bb)
        cube = op.multiply(r, op.multiply(r, r))
        k0 = op.multiply(op.multiply(r, portion), total(self.scaled(a), other_statistics, bb))
        k1 = op.multiply(op.multiply(cube, portion), total(self.scaled(b), other_statistics, bb))
        k1 = bb.emit(k1)
        k2 = bb.emit(op.subtract(op.multiply(k1, average), k0))
        factor = bb.emit(self.scaled(r))
        dx = op.add(op.subtract(op.multiply(dy, factor), op.multiply(self.x, k1)), k2)
        dgamma = total(op.multiply(b, r), other_constant, bb)
        return dx, dgamma, total(a, other_constant, bb)

    def _by_rows(self, dy: Any, centered: Any, r: Any, bb: Any) -> tuple[Any, Any, Any]:
        """Gamma varies along all axes that statistics reduce, as in layer norm."""
        scaled = self.scaled(dy)
        portion = share(self.x, self.statistics, bb)
        cube = op.multiply(r, op.multiply(r, r))
        k0 = op.multiply(op.multiply(r, portion), total(scaled, self.statistics, bb))
        sums = total(op.multiply(scaled, centered), self.statistics, bb)
        k1 = bb.emit(op.multiply(op.multiply(cube, portion), sums))
        dx = op.subtract(op.multiply(scaled, r), bb.emit(k0))
        dx = op.subtract(dx, op.multiply(centered, k1))
        dgamma = total(op.multiply(dy, op.multiply(centered, r)), self.constant, bb)
        return dx, dgamma, total(dy, self.constant, bb)


def _reciprocal_root(variance: Any, like: Any, epsilon: float) -> Any:
    return op.divide(const(1.0, like), op.sqrt(op.add(variance, const(epsilon, like))))


def batch_norm(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate by the statistics of the batch in training, else by the given ones.

    The running statistics that training returns have no gradient, as in PyTorch.

    Raises
    ------
    ValueError
        Where the loss depends on the returned statistics.
    """
    x, gamma, beta, moving_mean, moving_variance = call.args
    _refuse_statistics(call, dy, bb)
    dy = without_zeros(bb.emit(R.TupleGetItem(dy, 0)), bb)
    rank = len(shape_of(x))
    axis = positive_axis(call, "axis", rank)
    others = [a for a in range(rank) if a != axis]
    factors = bb.emit(spread(gamma, rank, axis)) if call_attr(call, "scale") else None
    epsilon = float_attr(call, "epsilon")
    if call_attr(call, "training"):
        norm = Norm(x, factors, others, others, epsilon)
        dx, dgamma, dbeta = norm.gradients(dy, bb)
        of_statistics = [None, None]
    else:
        average = bb.emit(spread(moving_mean, rank, axis))
        variance = bb.emit(spread(moving_variance, rank, axis))
        r = bb.emit(_reciprocal_root(variance, x, epsilon))
        scale = r if factors is None else bb.emit(op.multiply(r, factors))
        dbeta = bb.emit(total(dy, others, bb))
        b = bb.emit(total(op.multiply(dy, op.subtract(x, average)), others, bb))
        dx, dgamma = op.multiply(dy, scale), op.multiply(b, r)
        dvariance = op.multiply(op.multiply(b, scale), op.multiply(r, r))
        of_statistics = [
            reshaped(op.negative(op.multiply(dbeta, scale)), shape_of(moving_mean)),
            reshaped(op.multiply(dvariance, const(-0.5, x)), shape_of(moving_variance)),
        ]
    return [
        dx,
        reshaped(dgamma, shape_of(gamma)) if call_attr(call, "scale") else zeros_like(gamma),
        reshaped(dbeta, shape_of(beta)) if call_attr(call, "center") else zeros_like(beta),
        *of_statistics,
    ]


def _refuse_statistics(call: Any, dy: Any, bb: Any) -> None:
    """Raise for a gradient of results 1 and 2 that is not zero by construction."""
    if not all(is_zero(bb.normalize(R.TupleGetItem(dy, index)), bb) for index in (1, 2)):
        raise fail(
            op_name(call),
            "the loss depends on the returned mean or variance, which have no gradient; "
            "compute them by relax.op.mean and relax.op.variance",
        )


def layer_norm(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a norm whose gamma and beta have the sizes of the axes that are reduced."""
    x, gamma, beta = call.args
    sizes = shape_of(x)
    axes = axes_of(call, "axes", len(sizes))
    constant = [a for a in range(len(sizes)) if a not in axes]
    factors = reshaped(gamma, [n if a in axes else 1 for a, n in enumerate(sizes)])
    norm = Norm(x, bb.emit(factors), axes, constant, float_attr(call, "epsilon"))
    dx, dgamma, dbeta = norm.gradients(dy, bb)
    return [dx, reshaped(dgamma, shape_of(gamma)), reshaped(dbeta, shape_of(beta))]


def instance_norm(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate a norm that reduces `axes`, with gamma and beta along the channels."""
    x, gamma, beta = call.args
    rank = len(shape_of(x))
    channel = positive_axis(call, "channel_axis", rank)
    constant = [a for a in range(rank) if a != channel]
    factors = bb.emit(spread(gamma, rank, channel))
    axes = axes_of(call, "axes", rank)
    norm = Norm(x, factors, axes, constant, float_attr(call, "epsilon"))
    dx, dgamma, dbeta = norm.gradients(dy, bb)
    return [dx, reshaped(dgamma, shape_of(gamma)), reshaped(dbeta, shape_of(beta))]


def group_norm(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate an instance norm of groups of channels, the groups an axis of their own."""
    x, gamma, beta = call.args
    sizes = shape_of(x)
    rank = len(sizes)
    channel = positive_axis(call, "channel_axis", rank)
    groups = int(call_attr(call, "num_groups"))
    split = [groups, sizes[channel] // groups]
    apart = [*sizes[:channel], *split, *sizes[channel + 1 :]]
    axes = [a + (a > channel) for a in axes_of(call, "axes", rank) if a != channel]
    constant = [a for a in range(rank + 1) if a not in (channel, channel + 1)]
    factors = reshaped(gamma, [*[1] * channel, *split, *[1] * (rank - channel - 1)])
    norm = Norm(
        bb.emit(reshaped(x, apart)),
        bb.emit(factors),
        sorted([channel + 1, *axes]),
        constant,
        float_attr(call, "epsilon"),
    )
    dx, dgamma, dbeta = norm.gradients(bb.emit(reshaped(dy, apart)), bb)
    return [
        reshaped(dx, sizes),
        reshaped(dgamma, shape_of(gamma)),
        reshaped(dbeta, shape_of(beta)),
    ]


def rms_norm(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate ``x gamma / sqrt(mean(x^2) + epsilon)`` (Zhang and Sennrich, 2019)."""
    x, gamma = call.args
    sizes = shape_of(x)
    axes = axes_of(call, "axes", len(sizes))
    factors = reshaped(gamma, [n if a in axes else 1 for a, n in enumerate(sizes)])
    square = mean(op.multiply(x, x), axes, bb)
    r = bb.emit(_reciprocal_root(square, x, float_attr(call, "epsilon")))
    scaled = op.multiply(dy, bb.emit(factors))
    cube = op.multiply(r, op.multiply(r, r))
    k = bb.emit(op.multiply(cube, mean(op.multiply(scaled, x), axes, bb)))
    constant = [a for a in range(len(sizes)) if a not in axes]
    dgamma = total(op.multiply(dy, op.multiply(x, r)), constant, bb)
    return [
        op.subtract(op.multiply(scaled, r), op.multiply(x, k)),
        reshaped(dgamma, shape_of(gamma)),
    ]


def of_explicit(rule: Rule) -> Rule:
    """Return `rule` for norms without scale or shift, and of axes in any order, too."""

    @wraps(rule)
    def made(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
        found = explicit(bb, call)
        dx, *others = rule(y, found.call, dy, bb)
        back = sorted(range(len(found.order)), key=found.order.__getitem__)
        if back != sorted(back):
            others = [op.permute_dims(bb.emit(one), back) for one in others]
        return [dx, *(one if is_used else None for one, is_used in zip(others, found.flags))]

    return made


RULES: dict[str, Rule] = {
    "relax.nn.batch_norm": in_float32(batch_norm),
    "relax.nn.group_norm": in_float32(of_explicit(group_norm)),
    "relax.nn.instance_norm": in_float32(of_explicit(instance_norm)),
    "relax.nn.layer_norm": in_float32(of_explicit(layer_norm)),
    "relax.nn.rms_norm": in_float32(of_explicit(rms_norm)),
}
