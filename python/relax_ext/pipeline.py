# SPDX-License-Identifier: Apache-2.0
"""The pipeline for whole models: constant weights packed, what follows a convolution fused.

Operators around the convolutions are scheduled by :mod:`topi_ext.schedules`, matrix products on
GPUs by TVM's rules.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import tvm

from topi_ext.backend import supports
from topi_ext.code_cache.build import keeping, marked
from topi_ext.compat import call_attr, relax, tir
from topi_ext.emit import is_kernel
from topi_ext.kernel.database import AnyPath, using
from topi_ext.notices import warn_once
from topi_ext.schedules.float_semantics import ieee_floats, infinite_identities
from topi_ext.schedules.gpu import on_gpu
from topi_ext.schedules.loops import parallelized
from topi_ext.schedules.reductions import in_stages
from topi_ext.schedules.selections import without_branches
from topi_ext.schedules.vector_math import vectorized_math
from topi_ext.target import advise

from .fusion.channels_last import channels_last
from .fusion.enlarged import read_before_enlarging
from .fusion.fuse import fuse_kernels
from .fusion.moved import move_bytes
from .fusion.recomputed import recompute
from .fusion.tuples import fuse_ops
from .legalizations import log_softmax, reshapes, size_parameters, sums

R = relax()

_PASSES = {"llvm": "cpu_generic", "cuda": "cuda"}
"""TVM's module of passes for each kind of target with kernels of this package."""


def pipeline(target: Any, database: AnyPath | None = None) -> Any:
    """Return the passes of ``tvm.compile`` for models with convolutions, as ``relax_pipeline``.

    In addition to ``import relax_ext``, the kernel of a convolution computes batch norm of
    inference, bias, scale, residual and activation (relu, clip, tanh, sigmoid, silu, gelu, ...),
    and constant weights are packed at compile time.  The other operators run on all threads of a
    CPU with vector instructions, including exp, log, erf, tanh and sigmoid of float32, with an
    error of at most 5 units in the last place.  On CUDA TVM's rules schedule matrix products only;
    half-precision convolutions get channels last if the estimate is lower, and
    ``PassContext(config={"relax.backend.use_cuda_graph": True})`` around ``tvm.compile`` captures
    launches in a CUDA graph.  For a target without kernels of ours it is TVM's default pipeline.

    Parameters
    ----------
    target : str, dict or tvm.target.Target
    database : str or path, optional
        A file of :func:`relax_ext.tune`, whose plans have priority over estimated ones.  It is read
        when the pipeline runs; entries for another machine, or of another version, are ignored.
        The default is the file that the environment variable ``TVM_CONV_PLANS`` names.

    Returns
    -------
    tvm.transform.Pass

    Examples
    --------
    >>> target = relax_ext.host_target()
    >>> tvm.compile(module, target, relax_pipeline=relax_ext.pipeline(target))
    """
    target = tvm.target.Target(target)
    if not supports("conv", target):
        return R.get_default_pipeline(target)
    kind = target.kind.name
    of = import_module(f"tvm.relax.backend.{_PASSES[kind]}.pipeline")

    @tvm.transform.module_pass(opt_level=0, name="relax_ext.pipeline")
    def run(module: Any, _: Any) -> Any:
        advise("relax_ext", target)
        passes = [
            *first_passes(module),
            _pass(_folded),
            *of.library_dispatch_passes(target),
            *_legalize_passes(of.legalize_passes(target), kind),
            R.transform.DeadCodeElimination(),
            *of.dataflow_lower_passes(target),
            *([_pass(_scheduled(on_processors))] if kind == "llvm" else []),
            *of.finalize_passes(target),
        ]
        with target, nullcontext() if database is None else using(database):
            return marked(tvm.transform.Sequential(passes)(module))

    return run


def with_packed_parameters(module: Any, target: Any, database: AnyPath | None = None) -> Any:
    """Split functions in two: what packs their parameters once, and what is run.

    Parameters
    ----------
    module : tvm.IRModule
        Parameters behind those that the attribute ``num_input`` counts are weights.
    target : tvm.target.Target
    database : str or path, optional
        As for :func:`pipeline`, which has to compile the result.

    Returns
    -------
    tvm.IRModule
        ``NAME_transform_params`` takes the weights as a tuple and returns a tuple, whose fields
        ``NAME`` takes in the place of the weights.
    """
    passes = [*first_passes(module, packs_parameters=True), R.transform.LiftTransformParams()]
    with target, nullcontext() if database is None else using(database):
        return tvm.transform.Sequential(passes)(module)


def first_passes(module: Any, packs_parameters: bool = False) -> list[Any]:
    """Return the passes until convolutions are kernels with epilogues, and weights are packed by
    calls.
    """
    return [
        *([] if _trains(module) else [R.transform.DecomposeOpsForInference()]),
        R.transform.CanonicalizeBindings(),
        R.transform.DeadCodeElimination(),
        _pass(move_bytes),
        *(
            _pass(partial(function, packs_parameters=packs_parameters), function.__name__)
            for function in (read_before_enlarging, channels_last, fuse_kernels)
        ),
    ]


def on_processors(func: Any) -> Any:
    """Schedule a function that is no kernel of ours: all threads, vectors, NaN kept."""
    scheduled = in_stages(func, lambda one: parallelized(infinite_identities(one)))
    return without_branches(vectorized_math(ieee_floats(scheduled)))


def _folded(module: Any) -> Any:
    """`module`, whose constants are computed: what packs weights runs here.

    TVM's pass legalizes every operator before it looks for constants among its operands.
    """
    if not any(_calls(module, lambda call: all(map(_is_known, call.args)))):
        return module
    with keeping():
        return R.transform.FoldConstant()(module)


def _is_known(operand: Any) -> bool:
    """Return whether an operand of a call is no variable."""
    if isinstance(operand, R.Tuple):
        return all(map(_is_known, operand.fields))
    return not isinstance(operand, R.Var)


def _pass(function: Any, name: str | None = None) -> Any:
    @tvm.transform.module_pass(opt_level=0, name=name or function.__name__)
    def run(module: Any, _: Any) -> Any:
        return function(module)

    return run


def _legalize_passes(passes: list[Any], kind: str) -> list[Any]:
    """Return TVM's passes with ours for a kind of target.

    On processors sums stay whole: their stages are :mod:`topi_ext.schedules.reductions`.  On GPUs
    our schedules run before TVM's rules, which leave them as they are.
    """
    # Under its own name, by which a user's PassContext may disable or time it.
    fuse = _pass(_recomputed_and_fused if kind == "llvm" else fuse_ops, "FuseOps")
    passes = [fuse if one.info.name == "FuseOps" else one for one in passes]
    names = [one.info.name for one in passes]
    wanted = "LegalizeOps" if kind == "llvm" else "ApplyDefaultSchedule"
    if wanted not in names:
        warn_once(
            f"relax_ext.pipeline: this TVM has no pass {wanted} for {kind}: ours are left out"
        )
        return passes
    first = names.index(wanted)
    if kind != "llvm":
        return [*passes[:first], _pass(_scheduled(on_gpu)), *passes[first:]]
    ours = {
        "relax.sum": sums.whole,
        "relax.reshape": reshapes.by_groups,
        "relax.nn.log_softmax": log_softmax.once,
    }
    legalize = R.transform.LegalizeOps(ours)
    unfused = _pass(size_parameters.without_fusion)
    passes = [*passes[:first], legalize, unfused, *passes[first + 1 :]]
    return [*passes, _pass(reshapes.as_views)]


def _recomputed_and_fused(module: Any) -> Any:
    return fuse_ops(recompute(module))


def _scheduled(schedule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`schedule` of each PrimFunc of a module."""

    def scheduled(module: Any) -> Any:
        for name, func in list(module.functions_items()):
            if isinstance(func, tir.PrimFunc) and not is_kernel(func):
                module.update_func(name, schedule(func))
        return module

    return scheduled


def _trains(module: Any) -> bool:
    """Return whether a batch norm of `module` uses the statistics of its batch."""

    def trains(call: Any) -> bool:
        is_norm = isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.nn.batch_norm"
        return is_norm and bool(call_attr(call, "training"))

    return any(_calls(module, trains))


def _calls(module: Any, test: Callable[[Any], bool]) -> list[bool]:
    """Return the result of a test of each call of a module."""
    found: list[bool] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, R.Call):
            found.append(test(expr))

    for _, func in module.functions_items():
        if isinstance(func, R.Function):
            R.analysis.post_order_visit(func, visit)
    return found
