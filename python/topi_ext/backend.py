# SPDX-License-Identifier: Apache-2.0
"""From a face, its geometry and a target to a scheduled kernel, or to none.

One backend per kind of target builds kernels; what each has to know of a problem is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Any, NamedTuple

from . import compat
from .cpu import registry as cpu_registry
from .cpu.backend import CpuBackend
from .cuda import registry as cuda_registry
from .cuda.backend import CudaBackend
from .emit import SCRATCH_BYTES
from .epilogue import UNFUSED, Fused
from .geometry import Geometry, Size
from .kernel_info import announce
from .kernel_selection import selected
from .layout import Layouts
from .problem import Problem
from .product import Product
from .resize import Resize
from .rowwise import RowWise
from .sizes import Rule, rules, unknown
from .transposition import Transposition

KERNELS = frozenset(
    kernel.name for kernel in (*cpu_registry.KERNELS, *cuda_registry.KERNELS) if kernel.candidates
)
"""Names of the kernels that are chosen from."""

Backend = CpuBackend | CudaBackend
"""Builds kernels for one kind of target; hashable, so that equal requests share a kernel."""


BACKENDS: dict[str, tuple[type[Backend], str]] = {
    "llvm": (CpuBackend, "LLVM does not know the target's triple"),
    "cuda": (CudaBackend, "the target's arch must be one such as sm_80"),
}
"""By kind of target, what builds its kernels, and why it does not for a target that it refuses."""


@dataclass(frozen=True)
class Unsupported:
    """Why a target has no kernels of ours: TVM schedules the TE definitions for it."""

    reason: str


def of_target(target: Any) -> Backend | Unsupported:
    """What builds kernels for `target`, or why nothing does."""
    if target is None:
        return Unsupported("no target is known")
    kind = target.kind.name
    if kind not in BACKENDS:
        known = " and ".join(BACKENDS)
        return Unsupported(f"target kind {kind}: kernels of ours are for {known}")
    backend, reason = BACKENDS[kind]
    return backend.of(target, selected(KERNELS)) or Unsupported(reason)


def has_kernels(target: Any) -> bool:
    """Whether a target is one that our kernels are written for."""
    return not isinstance(of_target(target), Unsupported)


def fuses(target: Any, fused: Fused) -> bool:
    """Whether kernels of a target do that beside their sums."""
    found = of_target(target)
    return not isinstance(found, Unsupported) and found.fuses(fused)


def limits(
    face: str,
    geometry: Geometry,
    layouts: Layouts,
    n: Size,
    dtypes: tuple[str, str, str],
    target: Any,
) -> list[Rule]:
    """What kernels of `target` ask of symbolic sizes beyond what every kernel does.

    Kernels ask it themselves where TVM has functions that can; for Relay see its strategy.  Sizes
    have 64 bits, since rules multiply them.
    """
    found = of_target(target)
    if isinstance(found, Unsupported):
        return []
    return unknown(found.rules(Problem(face, geometry.as_rank3(), layouts, n, dtypes)))


class Packing(NamedTuple):
    """How weights are packed ahead of a kernel.

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


def prim_func(
    face: str,
    geometry: Geometry,
    layouts: Layouts,
    n: Size,
    dtypes: tuple[str, str, str],
    target: Any,
    fused: Fused = UNFUSED,
) -> Any:
    """The scheduled PrimFunc of one operator, or None where `target` has no kernel of ours for it.

    Parameters
    ----------
    face : {"conv", "conv_transpose", "conv_weight_grad"}
    geometry : Geometry
    layouts : Layouts
        Permutations in which x, w and y are stored.
    n : int or symbolic
        Batch.
    dtypes : tuple of str
        Of the first operand, of the second, of the result.
    target : tvm.target.Target or None
    fused : Fused
        Zero points, and what is done to the result; not for ``conv_weight_grad``.

    Returns
    -------
    PrimFunc or None
        ``(first operand, second operand, *operands of the epilogue, result)``.  Symbolic sizes
        become variables of the function.  Equal requests give the same object.
    """
    if not fuses(target, fused):
        return None
    found = of_target(target)
    return announce(_build(_Request.of(face, geometry, layouts, n, dtypes, found, fused)))


def prepacked(
    face: str,
    geometry: Geometry,
    layouts: Layouts,
    n: Size,
    dtypes: tuple[str, str, str],
    target: Any,
    fused: Fused = UNFUSED,
) -> tuple[Packing | None, Any]:
    """The same in two, for weights that are known before the operator runs.

    Returns
    -------
    packing : Packing or None
        None where the kernel reads weights as they are.
    kernel : PrimFunc or None
        As :func:`prim_func` returns it, but with `packed` in place of the weight.
    """
    found = of_target(target)
    if isinstance(found, Unsupported) or not found.fuses(fused):
        return None, None
    request = _Request.of(face, geometry, layouts, n, dtypes, found, fused, prepacked=True)
    return _build_packing(request), announce(_build(request))


@dataclass(frozen=True)
class Support:
    """Whether a target has kernels for a kind of operator; true or false as a condition.

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


def supports(kind: str, target: Any) -> Support:
    """Return whether a target has kernels of this package for a kind of operator.

    Parameters
    ----------
    kind : str
        ``conv``, ``conv_transpose``, ``conv_weight_grad``, ``matmul``, ``softmax``,
        ``masked_softmax``, ``normalize``, ``transpose`` or ``resize``.
    target : tvm.target.Target or None
    """
    found = of_target(target)
    if isinstance(found, Unsupported):
        return Support(False, found.reason)
    if not found.supports(kind):
        return Support(False, f"target kind {target.kind.name} has no kernels for {kind}")
    return Support(True)


OtherProblem = Product | RowWise | Transposition | Resize
"""What is no convolution: all of it is merged, and operands have the shapes of its letters."""


def build(problem: OtherProblem, target: Any) -> Any:
    """Return the scheduled PrimFunc of a matrix product, softmax, normalization, transpose or
    resize.

    Parameters
    ----------
    problem : Product, RowWise, Transposition or Resize
        A product is one that :attr:`~topi_ext.product.Product.is_matrix_product`.
    target : tvm.target.Target
        One that :func:`supports` its kind.

    Returns
    -------
    PrimFunc
        ``(x, w, *operands of the epilogue, y)`` of a product, else ``(x, *operands, y)``.
    """
    return announce(_build(_OtherRequest.of(problem, of_target(target))))


def prepack(problem: Product, target: Any) -> tuple[Packing | None, Any]:
    """The same in two, for w that is known before the operator runs; see :func:`prepacked`."""
    request = _OtherRequest.of(replace(problem, prepacked=True), of_target(target))
    return _build_packing(request), announce(_build(request))


def workspace_bytes(func: Any, threads: int) -> int | None:
    """Memory that a kernel of ours allocates while `threads` run it, at most.

    None where it depends on a symbolic size.
    """
    if SCRATCH_BYTES not in func.attrs:
        return None
    pairs = (map(int, pair) for pair in func.attrs[SCRATCH_BYTES])
    return max(common + threads * per_task for common, per_task in pairs)


@dataclass(frozen=True)
class _Request:
    """What is built, without what only names symbolic sizes: equal requests share a function."""

    face: str
    geometry: Geometry
    known: tuple[int | None, ...]
    layouts: Layouts
    dtypes: tuple[str, str, str]
    backend: Backend
    fused: Fused
    prepacked: bool

    @classmethod
    def of(
        cls,
        face: str,
        geometry: Geometry,
        layouts: Layouts,
        n: Size,
        dtypes: tuple[str, str, str],
        backend: Backend,
        fused: Fused,
        *,
        prepacked: bool = False,
    ) -> _Request:
        sizes = (n, *geometry.x_size, *geometry.y_size)
        known = tuple(size if isinstance(size, int) else None for size in sizes)
        sizeless = replace(geometry, x_size=(), y_size=())
        return cls(face, sizeless, known, layouts, dtypes, backend, fused, prepacked)

    def asked(self) -> tuple[Problem, list[Rule]]:
        """The problem, and what is asked of its sizes when it runs."""
        n, geometry = self._sized()
        problem = self._problem(n, geometry)
        more = unknown(self.backend.rules(problem))
        return problem, [*rules(self.face, geometry), *more]

    def _sized(self) -> tuple[Size, Geometry]:
        """Batch and geometry, with a fresh variable for each unknown size."""
        rank = self.geometry.rank
        names = ["n", *(f"{side}{axis}" for side in "xy" for axis in range(rank))]
        n, *sizes = (
            compat.size_var(name) if size is None else size for name, size in zip(names, self.known)
        )
        x_size, y_size = tuple(sizes[:rank]), tuple(sizes[rank:])
        return n, replace(self.geometry, x_size=x_size, y_size=y_size)

    def _problem(self, n: Size, geometry: Geometry) -> Problem:
        """The problem of these sizes."""
        rank3 = geometry.as_rank3()
        options = self.fused.epilogue, self.prepacked, self.fused.zero_points
        return Problem(self.face, rank3, self.layouts, n, self.dtypes, *options)


@dataclass(frozen=True)
class _OtherRequest:
    """The same of what is no convolution, whose symbolic sizes are None."""

    problem: OtherProblem
    backend: Backend

    @classmethod
    def of(cls, problem: OtherProblem, backend: Any) -> _OtherRequest:
        if isinstance(problem, (Product, RowWise)):
            known = ((a, size if isinstance(size, int) else None) for a, size in problem.sizes)
            problem = replace(problem, sizes=tuple(known))
        return cls(problem, backend)

    def asked(self) -> tuple[Problem | OtherProblem, list[Rule]]:
        """As of a convolution; nothing is asked of sizes."""
        problem = self.problem
        if isinstance(problem, (Product, RowWise)):
            sizes = (
                (a, compat.size_var(f"size_{a}") if size is None else size)
                for a, size in problem.sizes
            )
            problem = replace(problem, sizes=tuple(sizes))
        if isinstance(problem, Product):
            return problem.as_conv() or problem, []
        return problem, []


_AnyRequest = _Request | _OtherRequest


class Work(NamedTuple):
    """A kernel that was asked for: what it computes, and who builds it."""

    problem: Any
    backend: Backend


_recorded: ContextVar[dict[_AnyRequest, None] | None] = ContextVar("recorded", default=None)


@contextmanager
def recording() -> Iterator[list[Work]]:
    """What is asked of backends inside the block, in this thread, each once; full at its end."""
    requests: dict[_AnyRequest, None] = {}
    works: list[Work] = []
    before = _recorded.set(requests)
    try:
        yield works
    finally:
        _recorded.reset(before)
        works += (Work(one.asked()[0], one.backend) for one in requests)


_REMEMBERED = 256
"""Kernels: one takes a quarter of a megabyte."""


def _one_at_a_time(cached: Callable[[_AnyRequest], Any]) -> Callable[[_AnyRequest], Any]:
    """`cached`, asked by one thread at a time: what one has built, the next finds."""

    @wraps(cached)
    def ask(request: _AnyRequest) -> Any:
        recorded = _recorded.get()
        if recorded is not None:
            recorded[request] = None
        with compat.building:
            return cached(request)

    return ask


@_one_at_a_time
@lru_cache(maxsize=_REMEMBERED)
def _build(request: _AnyRequest) -> Any:
    problem, asked = request.asked()
    return compat.asserting(request.backend.build(problem), asked)


@_one_at_a_time
@lru_cache(maxsize=_REMEMBERED)
def _build_packing(request: _AnyRequest) -> Packing | None:
    packing = request.backend.build_packing(request.asked()[0])
    if packing is None:
        return None
    func, packed = packing
    return Packing(func, *packed)
