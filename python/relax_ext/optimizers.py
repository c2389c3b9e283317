# SPDX-License-Identifier: Apache-2.0
"""Optimizers as Relax functions: SGD, Adam and AdamW as PyTorch defines them.

One function updates all weights.  Rates and other numbers are arguments of it, so that a schedule
may change them from step to step without compiling again::

    adam = relax_ext.optimizers.Adam(lr=1e-3)
    module["update"] = relax_ext.optimizers.update_function([(adam, weights)])
    ...
    state = relax_ext.optimizers.initial_state([(adam, weights)])
    for step in range(1, steps + 1):
        loss, gradients = vm["main_adjoint"](x, *values)
        numbers = relax_ext.optimizers.numbers([(adam, weights)], step)
        values, state = vm["update"](list(values), gradients, state, numbers)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import runtime

from topi_ext.compat import dtype_name, known_shape, relax, tensor_type, tuple_type, type_of
from topi_ext.spec.geometry import fail

R = relax()

Emit = Callable[[Any], Any]

DTYPES = ("float32", "float64")


class Optimizer(ABC):
    """The rule by which one step changes a weight.

    Instances are immutable and hold no state.  Two of equal :attr:`structure` share a compiled
    function, whatever their numbers.
    """

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Names of the tensors that it keeps for each weight, of the shape of the weight."""

    @property
    @abstractmethod
    def structure(self) -> tuple[Any, ...]:
        """Return the properties that determine the function of :func:`update_function`."""

    @abstractmethod
    def numbers(self, step: int) -> list[float]:
        """Return the numbers that :meth:`emit` takes in a step; the first step is 1."""

    @abstractmethod
    def emit(
        self, emit: Emit, weight: Any, gradient: Any, slots: Sequence[Any], numbers: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """Emit the new weight and its new slots, with tensors of shape () as numbers."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, as ``torch.optim.SGD``.

    ``g += weight_decay * w``; ``buffer = momentum * buffer + (1 - dampening) * g``, in the first
    step ``buffer = g``; ``w -= lr * buffer``, or ``w -= lr * (g + momentum * buffer)`` with
    `nesterov`.

    Parameters
    ----------
    lr : float
    momentum, dampening, weight_decay : float
    nesterov : bool
        It needs a momentum and no dampening.
    maximize : bool
        Climb instead of descending.
    """

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False

    def __post_init__(self) -> None:
        _refuse_negative("SGD", lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and (not self.momentum or self.dampening):
            raise fail("SGD", "nesterov=True needs momentum > 0 and dampening=0")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    @property
    def structure(self) -> tuple[Any, ...]:
        flags = bool(self.momentum), bool(self.weight_decay)
        return "SGD", *flags, self.nesterov, self.maximize

    def numbers(self, step: int) -> list[float]:
        take = 1.0 if step == 1 else 1.0 - self.dampening
        return [self.lr, self.weight_decay, self.momentum, take]

    def emit(
        self, emit: Emit, weight: Any, gradient: Any, slots: Sequence[Any], numbers: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        lr, decay, momentum, take = numbers
        if self.maximize:
            gradient = emit(R.op.negative(gradient))
        if self.weight_decay:
            gradient = emit(R.op.add(gradient, R.op.multiply(weight, decay)))
        direction, kept = gradient, []
        if self.momentum:
            new = R.op.multiply(gradient, take)
            direction = emit(R.op.add(R.op.multiply(slots[0], momentum), new))
            kept = [direction]
        if self.nesterov:
            direction = R.op.add(gradient, R.op.multiply(direction, momentum))
        return emit(R.op.subtract(weight, R.op.multiply(direction, lr))), kept


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam, as ``torch.optim.Adam`` (Kingma and Ba, 2015; amsgrad: Reddi, Kale and Kumar, 2018).

    ``m += (1 - beta1) * (g - m)``; ``v = beta2 * v + (1 - beta2) * g * g``;
    ``w -= lr / (1 - beta1**t) * m / (sqrt(v) / sqrt(1 - beta2**t) + eps)``.

    Parameters
    ----------
    lr : float
    betas : pair of float
    eps : float
    weight_decay : float
        Added to the gradient times the weight.
    amsgrad : bool
        Divide by the largest v so far.
    maximize : bool
        Climb instead of descending.
    decoupled : bool
        Shrink the weight by ``lr * weight_decay`` instead of adding to the gradient: AdamW.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    maximize: bool = False
    decoupled: bool = False

    def __post_init__(self) -> None:
        _refuse_negative("Adam", lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise fail("Adam", f"betas={self.betas} must be at least 0 and below 1")

    @property
    def slots(self) -> tuple[str, ...]:
        largest = ("max_exp_avg_sq",) if self.amsgrad else ()
        return ("exp_avg", "exp_avg_sq", *largest)

    @property
    def structure(self) -> tuple[Any, ...]:
        flags = bool(self.weight_decay), self.decoupled
        return "Adam", *flags, self.amsgrad, self.maximize

    def numbers(self, step: int) -> list[float]:
        first, second = self.betas
        size = self.lr / (1 - first**step)
        correction = math.sqrt(1 - second**step)
        decay = 1 - self.lr * self.weight_decay if self.decoupled else self.weight_decay
        return [size, decay, 1 - first, second, 1 - second, correction, self.eps]

    def emit(
        self, emit: Emit, weight: Any, gradient: Any, slots: Sequence[Any], numbers: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        size, decay, take_first, keep, take_second, correction, eps = numbers
        mean, square, *largest = slots
        if self.maximize:
            gradient = emit(R.op.negative(gradient))
        if self.weight_decay and self.decoupled:
            weight = emit(R.op.multiply(weight, decay))
        elif self.weight_decay:
            gradient = emit(R.op.add(gradient, R.op.multiply(weight, decay)))
        step = R.op.multiply(R.op.subtract(gradient, mean), take_first)
        mean = emit(R.op.add(mean, step))
        new = R.op.multiply(R.op.multiply(gradient, gradient), take_second)
        square = emit(R.op.add(R.op.multiply(square, keep), new))
        largest = [emit(R.op.maximum(one, square)) for one in largest]
        root = R.op.sqrt(largest[0] if largest else square)
        divisor = R.op.add(R.op.divide(root, correction), eps)
        change = R.op.multiply(R.op.divide(mean, divisor), size)
        return emit(R.op.subtract(weight, change)), [mean, square, *largest]


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay, as ``torch.optim.AdamW`` (Loshchilov and Hutter, 2019).

    ``w *= 1 - lr * weight_decay`` before the step of :class:`Adam`, whose parameters it has.
    """

    weight_decay: float = 1e-2
    decoupled: bool = True


Groups = Sequence[tuple[Optimizer, Sequence[Any]]]
"""Optimizers, each with the Relax variables of its weights."""


def update_function(groups: Groups, clip_norm: float | None = None) -> Any:
    """Build the function that updates all weights.

    Parameters
    ----------
    groups : sequence of (Optimizer, sequence of relax.Var)
        The weights by groups; tensors of known shape and of one dtype, float32 or float64.
    clip_norm : float, optional
        The maximum norm of all gradients together, as for ``torch.nn.utils.clip_grad_norm_``.

    Returns
    -------
    relax.Function
        ``update(weights, gradients, state, numbers)``, which returns ``(weights, state)``: each a
        tuple in the order of the groups.  It begins with :func:`initial_state`; :func:`numbers`
        makes the last argument for each step.

    Raises
    ------
    ValueError
        If weights are missing or of several dtypes.
    """
    dtype = _dtype(groups)
    for _, weights in groups:
        for weight in weights:
            shape = known_shape(type_of(weight).shape)
            if shape is None or not all(isinstance(size, int) for size in shape):
                raise fail("optimizers", f"weight {weight} must be of known shape")
    if clip_norm is not None and not clip_norm > 0:
        raise fail("update_function", f"clip_norm={clip_norm} must be above 0")
    kinds = [type_of(weight) for _, weights in groups for weight in weights]
    slot_kinds = [type_of(w) for rule, weights in groups for w in weights for _ in rule.slots]
    scalars = 1 + sum(len(rule.numbers(1)) for rule, _ in groups)
    tuples = {
        "weights": kinds,
        "gradients": kinds,
        "state": slot_kinds,
        "numbers": [tensor_type((), dtype, 0)] * scalars,
    }
    params = [R.Var(name, tuple_type(fields)) for name, fields in tuples.items()]
    builder = R.BlockBuilder()
    with builder.function("update", params):
        with builder.dataflow():
            results = _updated(builder.emit, groups, params, clip_norm)
            result = builder.emit_output(R.Tuple([R.Tuple(tensors) for tensors in results]))
        builder.emit_func_output(result)
    return builder.get()["update"].with_attr("global_symbol", "update")


def initial_state(groups: Groups) -> list[Any]:
    """Return the state before the first step: zeros of the shapes of the weights."""
    dtype = _dtype(groups)
    return [
        runtime.tensor(np.zeros(known_shape(type_of(weight).shape), dtype))
        for rule, weights in groups
        for weight in weights
        for _ in rule.slots
    ]


def numbers(groups: Groups, step: int | Sequence[int], scale: float = 1.0) -> list[Any]:
    """Return the numbers of one step, as the function of :func:`update_function` takes them.

    Parameters
    ----------
    groups : sequence of (Optimizer, sequence of relax.Var)
        The groups of the function, or others of the same structure with other rates.
    step : int or sequence of int
        The number of the step, from 1; one for each group where they differ.
    scale : float, optional
        Factor of the gradients, applied first: 1 / n for sums over n batches.

    Returns
    -------
    list of tvm.runtime.Tensor
    """
    dtype = _dtype(groups)
    steps = [step] * len(groups) if isinstance(step, int) else list(step)
    if min(steps, default=1) < 1:
        raise fail("numbers", f"step={step} must be at least 1")
    values = [scale]
    for (rule, _), number in zip(groups, steps):
        values += rule.numbers(number)
    return [runtime.tensor(np.array(value, dtype)) for value in values]


def _updated(
    emit: Emit, groups: Groups, params: Sequence[Any], clip_norm: float | None
) -> tuple[list[Any], list[Any]]:
    """Emit the new weights and the new state."""
    old, given, state, scalars = (
        [emit(R.TupleGetItem(param, i)) for i in range(len(type_of(param).fields))]
        for param in params
    )
    gradients = [emit(R.op.multiply(gradient, scalars[0])) for gradient in given]
    if clip_norm is not None:
        factor = _clipping(emit, gradients, clip_norm)
        gradients = [emit(R.op.multiply(gradient, factor)) for gradient in gradients]
    new_weights: list[Any] = []
    new_state: list[Any] = []
    first = 1
    for rule, weights in groups:
        count = len(rule.numbers(1))
        for _ in weights:
            i, k = len(new_weights), len(new_state)
            slots = state[k : k + len(rule.slots)]
            rates = scalars[first : first + count]
            weight, kept = rule.emit(emit, old[i], gradients[i], slots, rates)
            new_weights.append(weight)
            new_state += kept
        first += count
    return new_weights, new_state


def _clipping(emit: Emit, gradients: Sequence[Any], clip_norm: float) -> Any:
    """Emit the factor that gives all gradients together a norm of `clip_norm` at most.

    ``min(clip_norm / (norm + 1e-6), 1)``, as ``torch.nn.utils.clip_grad_norm_``.
    """
    dtype = dtype_name(type_of(gradients[0]).dtype)
    total = None
    for gradient in gradients:
        squares = emit(R.op.sum(R.op.multiply(gradient, gradient)))
        total = squares if total is None else emit(R.op.add(total, squares))
    norm = R.op.add(R.op.sqrt(total), R.const(1e-6, dtype))
    ratio = emit(R.op.divide(R.const(clip_norm, dtype), norm))
    return emit(R.op.minimum(ratio, R.const(1.0, dtype)))


def _dtype(groups: Groups) -> str:
    """Return the one dtype of all weights."""
    names = [dtype_name(type_of(weight).dtype) for _, weights in groups for weight in weights]
    if not names:
        raise fail("optimizers", "there is no weight to update")
    if len(set(names)) > 1 or names[0] not in DTYPES:
        found = ", ".join(sorted(set(names)))
        raise fail("optimizers", f"weights of {found}: all must be float32, or all float64")
    return names[0]


def _refuse_negative(name: str, **values: float) -> None:
    for key, value in values.items():
        if not value >= 0:
            raise fail(name, f"{key}={value} must be at least 0")
