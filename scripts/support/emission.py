# SPDX-License-Identifier: Apache-2.0
"""Small modules of every kind of kernel, and hashes of the kernels that they are lowered to.

Modules are lowered as users have them lowered: fused and packed by the pipeline's first passes,
then legalized.  So the hashes do not depend on how the package is arranged inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm_ffi import structural_hash

from relax_ext.op.ops import conv_call
from relax_ext.pipeline import first_passes
from support import by_relax
from support.by_relax import module_of, tensor
from support.cases import KINDS, Case
from topi_ext import compat
from topi_ext.emit import is_kernel
from topi_ext.kernel.info import INFO, KERNEL
from topi_ext.spec.conv import OPERANDS
from topi_ext.spec.layout import Layouts

OP = relax.op
TARGETS: dict[str, dict[str, Any]] = {
    **{
        name: {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": name, "num-cores": 4}
        for name in ("znver4", "emeraldrapids", "x86-64-v3")
    },
    "neoverse-n1": {
        "kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 4,
    },
    **{arch: {"kind": "cuda", "arch": arch} for arch in ("sm_75", "sm_80", "sm_90")},
}  # fmt: skip

Build = Callable[[], tvm.IRModule]


def target_of(name: str) -> Any:
    """Return the target of this name."""
    stated = TARGETS[name]
    host = {"host": {"kind": "llvm"}} if stated["kind"] == "cuda" else {}
    return tvm.target.Target(stated, **host)


def kernels(module: tvm.IRModule, target: Any) -> dict[str, int]:
    """Structural hashes of the kernels of a module, and of those that pack weights, by name."""
    with target:
        passes = [*first_passes(module), relax.transform.LegalizeOps()]
        lowered = tvm.transform.Sequential(passes)(module)
    return {
        name.name_hint: structural_hash(_plain(func))
        for name, func in lowered.functions_items()
        if isinstance(func, compat.tir.PrimFunc) and is_kernel(func)
    }


def _plain(func: Any) -> Any:
    """Return a kernel without its name, and without what it says of itself."""
    for attribute in ("global_symbol", KERNEL, INFO):
        func = func.without_attr(attribute)
    return func


def of_case(case: Case) -> Iterator[tuple[str, Build]]:
    """Modules of the operators of one case, by key."""
    for kind in KINDS:
        build = partial(_conv, case, kind)
        for dtype in ("float32", "bfloat16", "float16", "int8"):
            for sizes in ("static", "symbolic"):
                yield f"{kind}/{dtype}/{sizes}", partial(build, dtype, symbolic=sizes != "static")
        yield f"{kind}/float32/channels_last", partial(build, "float32", channels_last=True)
        if kind != "conv_weight_grad":
            for dtype in ("float32", "bfloat16"):
                yield f"{kind}/{dtype}/packed", partial(build, dtype, constant=True)
            yield f"{kind}/float32/packed, fused", partial(_fused_conv, case, kind)
            for zeros in ((0, 0), (7, 0), (7, 3)):
                yield (
                    f"{kind}/uint8/quantized, zero points {zeros}",
                    partial(_qdq, case, kind, zeros),
                )


def _constant(shape: Any, dtype: str = "float32") -> Any:
    return relax.const(tvm.runtime.tensor(np.ones(tuple(shape), "float32").astype(dtype)))


def _conv(
    case: Case,
    kind: str,
    dtype: str,
    symbolic: bool = False,
    constant: bool = False,
    channels_last: bool = False,
) -> tvm.IRModule:
    g, sized = case.geometry_of(kind), case
    if symbolic:
        sized = by_relax.of_any_size(case, kind)
        g = sized.geometry
    layouts = Layouts.canonical(g.rank)
    if channels_last:
        places = "DHW"[3 - g.rank :]
        layouts = Layouts(f"N{places}C", layouts.w, f"N{places}C")

    def stored(role: str) -> list[Any]:
        shape = list(sized.shape(role))
        return [shape[0], *shape[2:], shape[1]] if channels_last and role != "w" else shape

    params = [tensor(role, stored(role), dtype) for role in OPERANDS[kind]]
    out_dtype = "int32" if dtype == "int8" else dtype

    def body(*operands: Any) -> Any:
        if constant:
            operands = (operands[0], _constant(stored(OPERANDS[kind][1]), dtype))
        size = relax.ShapeExpr(sized.geometry.x_size)
        return conv_call(kind, operands, g, layouts, out_dtype, size)

    return module_of(params, body)


def _fused_conv(case: Case, kind: str) -> tvm.IRModule:
    """With a bias, a residual, and an activation."""
    g, layouts = case.geometry_of(kind), Layouts.canonical(case.geometry.rank)
    shapes = [case.shape(role) for role in OPERANDS[kind]]
    result = case.shape("x" if kind == "conv_transpose" else "y")
    channels = (1, result[1]) + (1,) * g.rank

    def body(data: Any, bias: Any, residual: Any) -> Any:
        y = conv_call(kind, (data, _constant(shapes[1])), g, layouts, "float32")
        return OP.nn.gelu(OP.nn.relu(OP.add(OP.add(y, bias), residual)))

    return module_of(
        [tensor("data", shapes[0]), tensor("bias", channels), tensor("residual", result)], body
    )


def _qdq(case: Case, kind: str, zeros: tuple[int, int]) -> tvm.IRModule:
    """Return a convolution of bytes between dequantize and quantize."""
    g, layouts = case.geometry_of(kind), Layouts.canonical(case.geometry.rank)
    shapes = [case.shape(role) for role in OPERANDS[kind]]

    def real(x: Any, zero: int, dtype: str) -> Any:
        return OP.dequantize(x, relax.const(np.float32(0.5)), relax.const(zero, dtype))

    def body(data: Any) -> Any:
        operands = (
            real(data, zeros[0], "uint8"),
            real(_constant(shapes[1], "int8"), zeros[1], "int8"),
        )
        y = OP.nn.relu(conv_call(kind, operands, g, layouts, "float32"))
        scale, zero = relax.const(np.float32(4)), relax.const(9, "uint8")
        return OP.quantize(y, scale, zero, out_dtype="uint8")

    return module_of([tensor("data", shapes[0], "uint8")], body)


# ---------------------------------------------------------------- what is no convolution


def others() -> Iterator[tuple[str, Build]]:
    """Modules of matrix products, row-wise operators, transposes and resizes, by key."""
    for key, params, body in (*_products(), *_attention(), *_rows(), *_transposes(), *_resizes()):
        yield key, partial(module_of, [tensor(f"x{i}", *one) for i, one in enumerate(params)], body)


Entry = tuple[str, list[Any], Callable[..., Any]]


def _products() -> Iterator[Entry]:
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for x, w in (
            ((64, 256), (256, 512)),
            ((1, 300), (300, 77)),
            ((2, 8, 49, 64), (2, 8, 64, 49)),
        ):
            yield f"matmul/{dtype}/{x}@{w}", [(x, dtype), (w, dtype)], OP.matmul
        weight = partial(_constant, (256, 384), dtype)
        key, data = f"matmul/{dtype}/packed", ((3, 50, 256), dtype)
        yield key, [data], lambda x, weight=weight: OP.matmul(x, weight())
    n = compat.tir.Var("n", "int64")
    yield "matmul/symbolic", [((n, 256),), ((256, 128),)], OP.matmul
    yield (
        "matmul/fused",
        [((4, 50, 256),), ((384,),), ((4, 50, 384),)],
        lambda x, b, r: OP.add(OP.nn.gelu(OP.add(OP.matmul(x, _constant((256, 384))), b)), r),
    )
    yield (
        "matmul/heads",
        [((2, 49, 8, 32),), ((2, 49, 8, 32),)],
        lambda q, k: OP.matmul(OP.permute_dims(q, (0, 2, 1, 3)), OP.permute_dims(k, (0, 2, 3, 1))),
    )


def _attention() -> Iterator[Entry]:
    n = compat.tir.Var("n", "int64")
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        shapes = ((1, 100, 4, 40), (1, 77, 4, 40))
        params = [(shape, dtype) for shape in (*shapes, shapes[1])]
        yield f"attention/{dtype}", params, OP.nn.attention
    causal = partial(OP.nn.attention, causal_mask="TopLeft")
    yield "attention/causal", [((2, 64, 2, 8),)] * 3, causal
    yield "attention/symbolic", [((2, n, 2, 64),)] * 3, OP.nn.attention
    few = [((1, 2, 4, 64),), ((1, n, 4, 64),), ((1, n, 4, 64),)]
    yield "attention/few", few, OP.nn.attention
    mask = ((1, 1, 100, 100),)
    yield "attention/mask", [((1, 100, 4, 64),)] * 3 + [mask], OP.nn.attention


def _rows() -> Iterator[Entry]:
    n = compat.tir.Var("n", "int64")
    for dtype in ("float32", "float16"):
        for shape in ((8, 1000), (2, 4, 64, 64), (5, 3)):
            yield f"softmax/{dtype}/{shape}", [(shape, dtype)], partial(OP.nn.softmax, axis=-1)
        ones = partial(_constant, (64,), dtype)
        image = ((2, 64, 20, 20), dtype)
        for key, params, body in (
            (
                "layer_norm",
                [((4, 50, 64), dtype)],
                lambda x, ones=ones: OP.nn.relu(OP.nn.layer_norm(x, ones(), ones(), [-1])),
            ),
            (
                "group_norm",
                [image],
                lambda x, ones=ones: OP.nn.silu(OP.nn.group_norm(x, ones(), ones(), 8, 1, [2, 3])),
            ),
            (
                "instance_norm",
                [image],
                lambda x, ones=ones: OP.nn.instance_norm(x, ones(), ones(), 1, [2, 3]),
            ),
        ):
            yield f"{key}/{dtype}", params, body
    yield "softmax/symbolic", [((n, 64),)], partial(OP.nn.softmax, axis=-1)


def _transposes() -> Iterator[Entry]:
    for shape, axes in (
        ((2, 64, 56, 56), (0, 2, 3, 1)),
        ((2, 56, 56, 64), (0, 3, 1, 2)),
        ((512, 384), (1, 0)),
        ((8, 50, 12, 64), (0, 2, 3, 1)),
    ):
        yield f"transpose/{shape}/{axes}", [(shape,)], partial(OP.permute_dims, axes=axes)
    yield (
        "transpose/fused",
        [((2, 64, 56, 56),)],
        lambda x: OP.nn.relu(OP.permute_dims(x, (0, 2, 3, 1))),
    )


def _resizes() -> Iterator[Entry]:
    for method, mode in (
        ("linear", "half_pixel"),
        ("linear", "align_corners"),
        ("linear", "asymmetric"),
        ("nearest_neighbor", "asymmetric"),
    ):
        for size in ((32, 40), (48, 20)):
            rounding = "floor" if method == "nearest_neighbor" else "round"

            def body(x: Any, how: Any = (size, method, mode, rounding)) -> Any:
                size, method, mode, rounding = how
                return OP.nn.relu(
                    OP.image.resize2d(
                        x,
                        size,
                        layout="NCHW",
                        method=method,
                        coordinate_transformation_mode=mode,
                        rounding_method=rounding,
                    )
                )

            yield f"resize/{method}/{mode}/{size}", [((2, 16, 16, 20),)], body
