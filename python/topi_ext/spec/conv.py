# SPDX-License-Identifier: Apache-2.0
"""The problem of one convolution, for which planners make plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from .axis_access import AxisAccess
from .dtypes import accumulator
from .geometry import Geometry, Size, fail
from .layout import Layouts
from .post_ops import NO_ZERO_POINTS, UNFUSED, Epilogue, Fused, ZeroPoints, finished
from .problem import Argument, FreshSize, Problem, by, listed, text_of
from .size_hints import nominal
from .size_rules import Rule, rules

OPERANDS = {"conv": "xw", "conv_transpose": "yw", "conv_weight_grad": "xy"}
"""Roles of the operands of each kind; its result has the role that is left."""

RESULT = {"conv": "y", "conv_transpose": "x", "conv_weight_grad": "w"}

DATA = "NDHW"
"""The four axes of data as kernels order them; the channel C stands apart."""

TAPS = "DHW"
"""The axes of a kernel beside its channels O and I."""

Joined = tuple[tuple[int, ...], tuple[int, ...]]
"""Channels of the tensors before a result in a concatenation, and of those behind it."""

NOT_JOINED: Joined = ((), ())

BYTE_RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
"""Dtypes that have zero points, and which these may be."""


@dataclass(frozen=True)
class Convolution(Problem):
    """An operator to be built: a kind, its geometry with three spatial axes, and its operands.

    The batch `n` is treated as a fourth axis with a kernel of one, so that small images of a batch
    share vectors.  Axes are ordered batch, depth, height, width.

    Attributes
    ----------
    kind : str
        ``"conv"``, ``"conv_transpose"`` or ``"conv_weight_grad"``.
    geometry : Geometry
        With three spatial axes.
    layouts : Layouts
        Permutations in which x, w and y are stored.
    n : int or symbolic
        Batch.
    dtypes : tuple of str
        Dtypes of the first operand, the second, and the result.
    epilogue : tuple of PostOp
        Post-ops that are applied to the sums before they are written.
    prepacked : bool
        Whether a kernel that packs its weights may find them packed.
    zero_points : tuple of int
        Numbers that are subtracted from elements of both operands before they are multiplied.
    stated : Geometry or None
        For symbolic sizes, the geometry as the operator states it, which its run-time checks name.
    joined : pair of tuples
        Channels of each tensor before the result, and of each behind it, where the kernel writes
        the concatenation of all of them.  Each is stored as the result is.
    expected : int or None
        Positions of y that calls have, where sizes are symbolic and some calls are known.

    Raises
    ------
    ValueError
        For zero points of a gradient, of dtypes other than int8 and uint8, and beyond their range.
    """

    kind: str
    geometry: Geometry
    layouts: Layouts
    n: Size
    dtypes: tuple[str, str, str]
    epilogue: Epilogue = ()
    prepacked: bool = False
    zero_points: ZeroPoints = NO_ZERO_POINTS
    stated: Geometry | None = None
    joined: Joined = NOT_JOINED
    expected: int | None = None

    @classmethod
    def of(
        cls,
        kind: str,
        geometry: Geometry,
        layouts: Layouts,
        n: Size,
        dtypes: tuple[str, str, str],
        fused: Fused = UNFUSED,
    ) -> Convolution:
        """Return the problem of an operator with one, two or three spatial axes.

        Parameters
        ----------
        kind : {"conv", "conv_transpose", "conv_weight_grad"}
        geometry : Geometry
            As the operator states it.
        layouts : Layouts
            Permutations in which x, w and y are stored.
        n : int or symbolic
            Batch.
        dtypes : tuple of str
            Dtypes of the first operand, the second, and the result.
        fused : Fused
            Zero points, and what is done to the result; not for ``conv_weight_grad``.
        """
        options = fused.epilogue, False, fused.zero_points
        problem = cls(kind, geometry.as_rank3(), layouts, n, dtypes, *options)
        return problem if problem.is_static else replace(problem, stated=geometry)

    def anonymous(self) -> Convolution:
        """See :meth:`topi_ext.spec.problem.Problem.anonymous`."""
        if self.is_static:
            return self
        stated = self.stated or self.geometry
        x_size, y_size = _known(stated.x_size), _known(stated.y_size)
        stated = replace(stated, x_size=x_size, y_size=y_size)
        geometry, (n,) = replace(self.geometry, x_size=(), y_size=()), _known((self.n,))
        return replace(self, stated=stated, geometry=geometry, n=n)

    def with_sizes(self, fresh: FreshSize) -> Convolution:
        """See :meth:`topi_ext.spec.problem.Problem.with_sizes`."""
        if self.stated is None:
            return self

        def sized(side: str, sizes: Sequence[Size]) -> tuple[Size, ...]:
            return tuple(
                fresh(f"{side}{axis}") if size is None else size for axis, size in enumerate(sizes)
            )

        n = fresh("n") if self.n is None else self.n
        x_size, y_size = sized("x", self.stated.x_size), sized("y", self.stated.y_size)
        stated = replace(self.stated, x_size=x_size, y_size=y_size)
        return replace(self, stated=stated, geometry=stated.as_rank3(), n=n)

    def expecting(self, value: Callable[[Size], int | None]) -> Convolution:
        """See :meth:`topi_ext.spec.problem.Problem.expecting`."""
        sizes = [*map(value, self.y_sizes)]
        known = [size for size in sizes if size is not None]
        is_known = not self.is_static and len(known) == len(sizes)
        return replace(self, expected=prod(known)) if is_known else self

    def rules(self) -> list[Rule]:
        """See :meth:`topi_ext.spec.problem.Problem.rules`."""
        return rules(self.kind, self.stated or self.geometry)

    def arguments(self) -> Iterator[Argument]:
        """Data, weight, operands of the epilogue, other parts of a concatenation, and result; of a
        weight gradient x, y, result.
        """
        g, (first, second, result) = self.geometry, self.dtypes
        x = self.layouts.x, {**dict(zip(DATA, self.x_sizes)), "C": g.c}
        y = self.layouts.y, {**dict(zip(DATA, self.y_sizes)), "C": g.k}
        if self.kind == "conv_weight_grad":
            yield _argument("x", *x, first)
            yield _argument("y", *y, second)
            yield _argument("out", *self._weight, result)
            return
        data, out = (y, x) if self.transposed else (x, y)
        yield _argument("data", *data, first)
        yield _argument("weight", *self._weight, second)
        for number, step in enumerate(step for step in self.epilogue if step.order):
            sizes = {
                letter: out[1][letter] if letter in step.varies else 1 for letter in step.order
            }
            yield _argument(f"operand{number}", step.order, sizes, step.dtype or result)
        order, own = out
        for number, channels in enumerate(sum(self.joined, ())):
            yield _argument(f"part{number}", order, {**own, "C": channels}, result)
        yield _argument("out", order, {**own, "C": self.result_channels}, result)

    @property
    def _weight(self) -> tuple[str, dict[str, Size]]:
        g = self.geometry
        return self.layouts.w, {**dict(zip(TAPS, g.kernel)), "O": g.k, "I": g.c_per_group}

    @property
    def signature(self) -> str:
        """See :attr:`topi_ext.spec.problem.Problem.signature`.

        Numbers of an epilogue are left out: no plan depends on them.
        """
        steps = ",".join(
            step.op + (f"({step.order}:{step.varies})" if step.order else "")
            for step in self.epilogue
        )
        more = [f"epilogue={steps}"] * bool(steps)
        more += [f"zero_points={text_of(self.zero_points)}"] * any(self.zero_points)
        more += ["prepacked"] * self.prepacked
        stated = (listed(one) for one in (self.geometry, self.layouts))
        return " ".join([f"{self.kind} n={self.n}", *stated, "x".join(self.dtypes), *more])

    def __post_init__(self) -> None:
        check_zero_points(self.kind, self.dtypes, self.zero_points)

    @property
    def shape_text(self) -> str:
        """Sizes of the data and of the result, and the window between them."""
        g, rank = self.geometry, len(self.layouts.x) - 2
        x = by((self.n, g.c, *g.x_size[-rank:]))
        y = by((self.n, g.k, *g.y_size[-rank:]))
        ends = {"conv": f"{x} -> {y}", "conv_transpose": f"{y} -> {x}"}
        window = [ends.get(self.kind, f"{x}, {y} -> {g.k}x{g.c_per_group}")]
        for name, values, usual in (
            ("kernel", g.kernel, None),
            ("stride", g.stride, 1),
            ("dilation", g.dilation, 1),
            ("padding", (*g.pad_before[-rank:], *g.pad_after[-rank:]), 0),
        ):
            own = values if name == "padding" else values[-rank:]
            if not all(_is(value, usual) for value in own):
                window.append(f"{name} {by(own)}")
        return " ".join([*window, *([f"groups {g.groups}"] if g.groups > 1 else [])])

    @property
    def transposed(self) -> bool:
        """Return whether the access runs from y to x."""
        return self.kind == "conv_transpose"

    @cached_property
    def acc_dtype(self) -> str:
        """Dtype of the accumulators."""
        return accumulator(self.kind, *self.dtypes)

    @cached_property
    def finished_dtype(self) -> str:
        """Dtype of what the epilogue makes of them, before it is that of the result."""
        return finished(self.epilogue, self.acc_dtype)

    @cached_property
    def accesses(self) -> tuple[AxisAccess, ...]:
        """Return how the packed operand is read along the four axes."""
        batch = AxisAccess(self.transposed, 1, 1, 1, 0)
        return (batch, *self.geometry.accesses(transposed=self.transposed))

    @property
    def has_pairs(self) -> bool:
        """Return whether operands are bfloat16, with an even number of input channels: pairs of
        them.
        """
        return self.dtypes[:2] == ("bfloat16",) * 2 and self.in_channels % 2 == 0

    def in_steps(self, size: int) -> Convolution:
        """Return this problem with input channels grouped into steps of `size`; the last step of a
        group may be partially filled.
        """
        g = self.geometry
        steps = g.groups * -(-self.in_channels // size)
        fewer = replace(g, k=steps) if self.transposed else replace(g, c=steps)
        return replace(self, geometry=fewer)

    @property
    def x_sizes(self) -> tuple[Size, ...]:
        """Sizes of x along the four axes."""
        return (self.n, *self.geometry.x_size)

    @property
    def y_sizes(self) -> tuple[Size, ...]:
        """Sizes of y along the four axes."""
        return (self.n, *self.geometry.y_size)

    @property
    def in_sizes(self) -> tuple[Size, ...]:
        """Sizes of the operand that is read."""
        return self.y_sizes if self.transposed else self.x_sizes

    @property
    def out_sizes(self) -> tuple[Size, ...]:
        """Sizes of the operand that is written."""
        return self.x_sizes if self.transposed else self.y_sizes

    @cached_property
    def in_channels(self) -> int:
        """Channels per group of the data operand: what is summed over."""
        g = self.geometry
        return g.k_per_group if self.transposed else g.c_per_group

    @cached_property
    def out_channels(self) -> int:
        """Channels per group of the result."""
        g = self.geometry
        return g.c_per_group if self.transposed else g.k_per_group

    @property
    def is_part(self) -> bool:
        """Return whether the kernel writes a concatenation."""
        return self.joined != NOT_JOINED

    @property
    def result_channels(self) -> int:
        """Channels of all groups of the result, and of what is joined to it."""
        return self.geometry.groups * self.out_channels + sum(map(sum, self.joined))

    @property
    def weights_per_group(self) -> int:
        """Number of weights of one group."""
        return self.in_channels * self.out_channels * self.geometry.taps

    @property
    def weights(self) -> int:
        """Number of all weights."""
        return self.geometry.groups * self.weights_per_group

    @cached_property
    def elements(self) -> int:
        """Return the elements of x, y and weights, of symbolic sizes as plans assume them."""
        x, y = prod(nominal(self.x_sizes)), prod(nominal(self.y_sizes))
        return self.geometry.c * x + self.geometry.k * y + self.weights

    @property
    def weights_are_runs(self) -> bool:
        """Return whether the weights of a channel of y are contiguous in memory, taps fastest."""
        order = self.layouts.w
        return order == "OI" + "DHW"[5 - len(order) :]

    @property
    def weights_are_rows(self) -> bool:
        """Return whether an access reads the weights of an output channel contiguously, in the
        dtype of its sums.
        """
        as_summed = self.dtypes[1] == self.acc_dtype
        return not self.transposed and self.weights_are_runs and as_summed

    @property
    def rows_are_runs(self) -> bool:
        """Return whether elements of a row of the result are neighbours in memory."""
        layout = self.layouts.x if self.transposed else self.layouts.y
        return layout.endswith("W")

    @property
    def taps_are_runs(self) -> bool:
        """Return whether the float weights between two channels are contiguous in memory."""
        taps = self.layouts.w.replace("O", "").replace("I", "")
        return (
            self.layouts.w.endswith(taps)
            and taps == "DHW"[3 - len(taps) :]
            and self.acc_dtype.startswith("float")
        )

    @cached_property
    def positions(self) -> tuple[Size, ...]:
        """Positions per phase along the four axes (of y, for the weight gradient)."""
        return tuple(
            (size + access.out_step - 1) // access.out_step
            for size, access in zip(self.out_sizes, self.accesses)
        )

    @property
    def is_plain(self) -> bool:
        """Return whether each output position reads one input for every tap."""
        return all(access.is_plain for access in self.accesses)

    @cached_property
    def met(self) -> tuple[tuple[int, ...], ...]:
        """Along depth, height and width, at how many positions each tap meets data, not padding.

        For images of known size and plain accesses.
        """
        axes = zip(self.accesses[1:], self.positions[1:], self.in_sizes[1:])
        bounds = (
            [access.meets(tap, positions, size) for tap in range(access.kernel)]
            for access, positions, size in axes
        )
        return tuple(tuple(max(0, end - begin) for begin, end in axis) for axis in bounds)

    @cached_property
    def valid_fraction(self) -> float:
        """The share of products with data, not padding; 1 of symbolic images and of phases."""
        if not self.images_are_known or not self.is_plain:
            return 1.0
        return prod(map(sum, self.met)) / max(1, prod(self.positions[1:]) * self.geometry.taps)

    @cached_property
    def is_static(self) -> bool:
        """Return whether all sizes are numbers."""
        return isinstance(self.n, int) and self.images_are_known

    @cached_property
    def images_are_known(self) -> bool:
        """Return whether all but the batch are."""
        sizes = (*self.geometry.x_size, *self.geometry.y_size)
        return all(isinstance(size, int) for size in sizes)


def _argument(name: str, order: str, sizes: dict[str, Size], dtype: str) -> Argument:
    """One that is stored in `order`; axes that it does not name are unit axes."""
    return Argument(name, order, tuple(sizes[letter] for letter in order), dtype)


def _known(sizes: Sequence[Size]) -> tuple[int | None, ...]:
    """Replace symbolic sizes by None."""
    return tuple(size if isinstance(size, int) else None for size in sizes)


def _is(value: object, usual: int | None) -> bool:
    """Return whether a number, or a size that may be symbolic, is the usual one."""
    return isinstance(value, int) and value == usual


def check_zero_points(kind: str, dtypes: tuple[str, str, str], zero_points: ZeroPoints) -> None:
    """Raise a ValueError, of one line, for those that are none."""
    for dtype, zero in zip(dtypes, zero_points):
        if not zero:
            continue
        if kind == "conv_weight_grad":
            raise fail(kind, "a gradient has no zero points")
        if dtype not in BYTE_RANGES:
            raise fail(kind, f"zero point {zero} needs an operand of int8 or uint8, not {dtype}")
        low, high = BYTE_RANGES[dtype]
        if not low <= zero <= high:
            raise fail(kind, f"zero point {zero} of {dtype} must be from {low} to {high}")
