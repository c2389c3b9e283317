# SPDX-License-Identifier: Apache-2.0
"""Build a scheduled kernel for a problem and a target, if the target has one.

One backend per kind of target builds kernels; what each has to know of a problem is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Any, NamedTuple, TypeVar

from . import compat
from .cpu import registry as cpu_registry
from .cpu.backend import CpuBackend
from .cuda import registry as cuda_registry
from .cuda.backend import CudaBackend
from .emit import SCRATCH_BYTES
from .kernel.backend import Backend
from .kernel.info import announce
from .kernel.selection import selected
from .spec.conv import Convolution
from .spec.post_ops import NO_ZERO_POINTS, ZeroPoints
from .spec.problem import Problem
from .spec.size_rules import Rule, unknown

KERNELS = frozenset(
    kernel.name for kernel in (*cpu_registry.KERNELS, *cuda_registry.KERNELS) if kernel.candidates
)
"""Names of the kernels that are chosen from."""


BACKENDS: dict[str, tuple[type[Backend[Any]], str]] = {
    "llvm": (CpuBackend, "LLVM does not know the target's triple"),
    "cuda": (CudaBackend, "the target's arch must be one such as sm_80"),
}
"""By kind of target, what builds its kernels, and why it does not for a target that it refuses."""


@dataclass(frozen=True)
class Unsupported:
    """Why a target has no kernels of ours: TVM schedules the TE definitions for it."""

    reason: str


def of_target(target: Any) -> Backend[Any] | Unsupported:
    """Return the backend that builds kernels for `target`, or the reason why there is none."""
    if target is None:
        return Unsupported("no target is known")
    kind = target.kind.name
    if kind not in BACKENDS:
        known = " and ".join(BACKENDS)
        return Unsupported(f"target kind {kind}: this package has kernels for {known}")
    backend, reason = BACKENDS[kind]
    return backend.of(target, selected(KERNELS)) or Unsupported(reason)


@dataclass(frozen=True)
class Support:
    """Answer if a target has kernels for a kind of operator; true or false as a condition.

    Attributes
    ----------
    is_there : bool
    reason : str
        Why there are none; empty where there are.
    """

    is_there: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.is_there


def supports(kind: str, target: Any, zero_points: ZeroPoints = NO_ZERO_POINTS) -> Support:
    """Return whether a target has kernels of this package for a kind of operator.

    Parameters
    ----------
    kind : str
        ``conv``, ``conv_transpose``, ``conv_weight_grad``, ``matmul``, ``softmax``,
        ``masked_softmax``, ``normalize``, ``strided_normalize``, ``attention``,
        ``attention_grad``, ``transpose`` or ``resize``; ``concat`` of a convolution and tensors.
    target : tvm.target.Target or None
    zero_points : tuple of int
        Numbers that are subtracted from elements of both operands.
    """
    found = of_target(target)
    if isinstance(found, Unsupported):
        return Support(False, found.reason)
    name = target.kind.name
    if not found.supports(kind):
        return Support(False, f"target kind {name} has no kernels for {kind}")
    if not found.fuses(zero_points):
        return Support(False, f"target kind {name} has no kernels with zero points")
    return Support(True)


def _is_served(problem: Problem, target: Any) -> bool:
    """Return whether a target has kernels for a problem."""
    asked = (problem.kind, *(["concat"] if problem.is_part else []))
    return all(supports(kind, target, problem.zero_points) for kind in asked)


def limits(problem: Problem, target: Any) -> list[Rule]:
    """Return what kernels of `target` ask of symbolic sizes beyond what every kernel does.

    Kernels ask it themselves where TVM has functions that can; for Relay see its strategy.  Sizes
    have 64 bits, since rules multiply them.
    """
    found = of_target(target)
    return [] if isinstance(found, Unsupported) else unknown(found.rules(problem))


class Packing(NamedTuple):
    """Description of how weights are packed ahead of a kernel.

    Attributes
    ----------
    func : PrimFunc
        ``(weight, packed)``.
    elements : int
        Size of `packed`, which has one axis.
    dtype : str
        Its dtype.
    """

    func: Any
    elements: int
    dtype: str


def build(problem: Problem, target: Any) -> Any:
    """Return the scheduled PrimFunc of an operator, or None if `target` has no kernel for it.

    Parameters
    ----------
    problem : Problem
        A problem of any kind.  A product is one that
        :attr:`~topi_ext.spec.matmul.Product.is_matrix_product`.
    target : tvm.target.Target or None

    Returns
    -------
    PrimFunc or None
        Its parameters are the :meth:`~topi_ext.spec.problem.Problem.arguments` of the problem.
        Symbolic sizes become variables of the function.  Equal problems give the same object.
    """
    if not _is_served(problem, target):
        return None
    return _announced(_Request.of(problem, of_target(target)))


def prepack(problem: Any, target: Any) -> tuple[Packing | None, Any]:
    """Build the operator as two PrimFuncs: one packs a weight that is known when the operator is
    compiled, the other is the kernel that reads the packed weight.

    Parameters
    ----------
    problem : Problem
        A convolution or a matrix product.
    target : tvm.target.Target or None

    Returns
    -------
    packing : Packing or None
        None if the kernel reads weights without packing.
    kernel : PrimFunc or None
        As :func:`build` returns it, but with `packed` in place of the weight.
    """
    if not _is_served(problem, target):
        return None, None
    request = _Request.of(replace(problem, prepacked=True), of_target(target))
    return _build_packing(request), _announced(request)


def packing_ahead(problem: Any, target: Any) -> Packing | None:
    """Return how the weight of an operator is packed before the post-ops behind it are known.

    Parameters
    ----------
    problem : Problem
        A convolution or a matrix product, without post-ops.
    target : tvm.target.Target or None

    Returns
    -------
    Packing or None
        None where the kernel reads weights as they are, or `target` has none.
    """
    if not _is_served(problem, target):
        return None
    request = _Request.of(replace(problem, prepacked=True), of_target(target))
    return _build_packing(request)


def build_on_packed(problem: Any, target: Any) -> Any:
    """Return the kernel of an operator whose weight :func:`packing_ahead` has packed.

    The plan is that of the operator without post-ops: the estimate of some plans counts post-ops,
    and another plan may take other packed weights.

    Parameters
    ----------
    problem : Problem
        With the post-ops that the kernel computes.
    target : tvm.target.Target
    """
    problem = replace(problem, prepacked=True)
    base = replace(problem, epilogue=())
    backend = of_target(target)
    return _announced(_Request.of(problem, backend, base))


def is_faster(problem: Problem, target: Any) -> bool:
    """Return whether the kernel of a problem is estimated to take less time than those of
    :meth:`~topi_ext.spec.problem.Problem.separate` one after the other.

    Symbolic sizes are taken for 256.  A plan that was measured is taken without an estimate.
    """
    backend: Any = of_target(target)
    known = problem.of_nominal_sizes()
    cost = backend.choice(known).estimate
    separate = (backend.choice(one.canonical()).estimate for one in known.separate())
    return cost is None or cost <= sum(each for each in separate if each is not None)


def estimated_time(
    problems: Iterable[Convolution], transposed: Iterable[int], target: Any
) -> float | None:
    """Return the nanoseconds that kernels take by estimate, one after the other.

    Parameters
    ----------
    problems : iterable of Convolution
    transposed : iterable of int
        Bytes of each tensor that is transposed.
    target : tvm.target.Target

    Returns
    -------
    float or None
        None for targets whose estimates are no nanoseconds.
    """
    found = of_target(target)
    return found.estimated_time(problems, transposed) if isinstance(found, CudaBackend) else None


def plans(problem: Problem, target: Any) -> Iterator[tuple[float, Any]]:
    """Yield every plan that is compared for a problem of known sizes, with its estimated cost.

    Costs are CPU cycles, or nanoseconds of a GPU.  There may be thousands of plans, and there are
    none if `target` has no kernel for the problem.
    """
    found = of_target(target)
    return iter(()) if isinstance(found, Unsupported) else found.candidates(problem)


def workspace_bytes(func: Any, threads: int) -> int | None:
    """Return the maximum of memory that a kernel of this package allocates while `threads` run it.

    None if it depends on a symbolic size.
    """
    if SCRATCH_BYTES not in func.attrs:
        return None
    pairs = (map(int, pair) for pair in func.attrs[SCRATCH_BYTES])
    return max(common + threads * per_task for common, per_task in pairs)


class Work(NamedTuple):
    """A requested kernel: its problem, and the function that builds it."""

    problem: Any
    backend: Backend[Any]


class _Request(NamedTuple):
    """A problem to build without the names of symbolic sizes: equal requests share a function.

    Attributes
    ----------
    problem : Problem
    backend : Backend
    base : Problem or None
        The problem of known sizes whose plan is built, if it is another one.
    """

    problem: Problem
    backend: Backend[Any]
    base: Problem | None = None

    @classmethod
    def of(cls, problem: Problem, backend: Any, base: Problem | None = None) -> _Request:
        return cls(problem.anonymous(), backend, None if base == problem else base)

    def work(self) -> Work:
        """Return the problem with a fresh variable for each symbolic size, and what builds it."""
        return Work(self.problem.with_sizes(compat.size_var).canonical(), self.backend)


_recorded: ContextVar[dict[_Request, None] | None] = ContextVar("recorded", default=None)


@contextmanager
def recording() -> Iterator[list[Work]]:
    """Record requests to backends inside the block, in this thread, each once; complete at its
    end.
    """
    requests: dict[_Request, None] = {}
    works: list[Work] = []
    before = _recorded.set(requests)
    try:
        yield works
    finally:
        _recorded.reset(before)
        works += (request.work() for request in requests)


Built = TypeVar("Built")

_REMEMBERED = 256
"""Kernels: one takes a quarter of a megabyte."""


def _one_at_a_time(cached: Callable[[_Request], Built]) -> Callable[[_Request], Built]:
    """Return `cached`, called by one thread at a time, so that other threads find its results."""

    @wraps(cached)
    def ask(request: _Request) -> Built:
        recorded = _recorded.get()
        if recorded is not None:
            recorded[request] = None
        with compat.building:
            return cached(request)

    return ask


def _announced(request: _Request) -> Any:
    return announce(_build(request), lambda: request.backend.verdicts(request.problem))


@_one_at_a_time
@lru_cache(maxsize=_REMEMBERED)
def _build(request: _Request) -> Any:
    problem, backend = request.work()
    asked = [*problem.rules(), *unknown(backend.rules(problem))]
    plan: Any = request.base and backend.choice(request.base.canonical()).plan
    return compat.asserting(backend.build(problem, plan), asked)


@_one_at_a_time
@lru_cache(maxsize=_REMEMBERED)
def _build_packing(request: _Request) -> Packing | None:
    problem, backend = request.work()
    packing = backend.build_packing(problem)
    if packing is None:
        return None
    func, packed = packing
    return Packing(func, *packed)
