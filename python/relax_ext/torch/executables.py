# SPDX-License-Identifier: Apache-2.0
"""Compiled functions of a part: one for all sizes, or first some for the sizes that are seen.

A function for known sizes compiles in a fraction of the time of one for all sizes, and no size
costs it run time.  So a part whose sizes PyTorch made symbolic by itself is compiled for the sizes
of its first calls.  Further sizes share one function, which bounds the time that is lost to sizes
that are seen once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import tvm
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import DimDynamic

from topi_ext.compat import relax

from .allocation import called

R = relax()

STATIC_SIZES = 1
"""Tuples of sizes that have functions of their own, where neither user nor options say more.

One suits the smaller last batch of an epoch.  A function for all sizes compiles in the time of two
or three for one size (bench_first_call.py), so each more would be lost where there are many sizes.
"""

Sizes = tuple[int, ...]


def are_stated() -> bool:
    """Return whether the user, not PyTorch, made sizes of the graph that is traced symbolic.

    This is done by ``dynamic=True``, ``mark_dynamic`` and ``maybe_mark_dynamic``.  PyTorch does it
    at the second size that it sees, and notes that it may take it back.
    """
    if not torch._dynamo.config.assume_static_by_default:
        return True
    tracing = TracingContext.try_get()
    contexts = tracing.tensor_to_context.values() if tracing else ()
    return any(
        size is not DimDynamic.STATIC and not getattr(constraint, "warn_only", False)
        for context in contexts
        for size, constraint in zip(context.dynamic_sizes, context.constraint_sizes)
    )


class Kept:
    """A value that follows from tensors, kept until a change of one of them is detected.

    A tensor of inference mode has no version, so it counts as changed at every call.
    """

    def __init__(self) -> None:
        self._last: tuple[Any, ...] = (None, None, None)

    def of(self, tensors: Sequence[torch.Tensor], make: Callable[[], Any]) -> Any:
        """Return what `make` has made of these tensors, or makes now."""
        is_tracked = not any(tensor.is_inference() for tensor in tensors)
        now = [(tensor.data_ptr(), tensor._version) for tensor in tensors] if is_tracked else None
        seen, made, _ = self._last
        if now is None or now != seen:
            made = make()
            # Their memory is kept too, because the address of a freed one could be used again.
            self._last = (now, made, [tensor.detach() for tensor in tensors])
        return made


class Executable:
    """A compiled function, a virtual machine of it in each thread, and the weights packed for it.

    Parameters
    ----------
    compiled : tvm.runtime.Executable
    is_for_all : bool
        Whether its first argument is the symbolic sizes.
    """

    def __init__(self, compiled: Any, is_for_all: bool) -> None:
        self._compiled = compiled
        self.is_for_all = is_for_all
        self._local = threading.local()
        self._packed = Kept()

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Return the results of a function by its name."""
        functions = vars(self._local)
        function = functions.get(name)
        if function is None:
            if not functions:
                self._local.machine = R.VirtualMachine(self._compiled, tvm.cpu())
            function = functions[name] = self._local.machine[name]
        return called(self._compiled, function, name, *arguments)

    def weights(self, given: Sequence[torch.Tensor], pack: Callable[..., Any]) -> list[Any]:
        """Return the packed weights, which are kept until a change of a weight is detected."""
        packed: list[Any] = self._packed.of(given, lambda: list(pack(self, given)))
        return packed


class Executables:
    """The executables of a part by the sizes that they are for.

    Parameters
    ----------
    build : callable
        ``build(sizes)`` compiles for sizes, or for all of them if it is called with None.  It
        returns None if the part has to stay in PyTorch.
    kept : callable
        ``kept(sizes)`` returns what was compiled before for these sizes or for all, such as for the
        graph of the model's first size, which PyTorch replaces by one of symbolic sizes.  None if
        there is nothing.
    static_sizes : int
        Number of tuples of sizes that are compiled for themselves.
    """

    def __init__(
        self,
        build: Callable[[Sizes | None], Any],
        kept: Callable[[Sizes | None], Any],
        static_sizes: int,
    ) -> None:
        self._build = build
        self._kept = kept
        self._left = self._static_sizes = static_sizes
        self._lock = threading.RLock()
        self._found: dict[Sizes | None, Executable | None] = {}

    def of(self, sizes: Sizes) -> Executable | None:
        """Return the executable for sizes, which is compiled if it is the first call with them."""
        if not self._serves(sizes):
            with self._lock:
                if not self._serves(sizes):
                    self._add(sizes)
        return self._found[sizes if sizes in self._found else None]

    def _serves(self, sizes: Sizes) -> bool:
        return sizes in self._found or None in self._found

    def _add(self, sizes: Sizes) -> None:
        keys: tuple[Sizes | None, ...] = (sizes, None) if self._static_sizes else ()
        for key in keys:
            compiled = self._kept(key)
            if compiled is not None:
                break
        else:
            key = sizes if self._left else None
            self._left -= key is not None
            compiled = self._build(key)
        self._found[key] = None if compiled is None else Executable(compiled, key is None)
