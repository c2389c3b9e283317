# SPDX-License-Identifier: Apache-2.0
"""Gradients of maximum poolings on processors and GPUs, of any stride, padding and dilation.

TVM's lowering searches the maximum of a window anew for each element of the data, reads behind its
last window, and has no dilation.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from topi_ext.compat import (
    call_attr,
    dtype_name,
    is_cpu,
    is_gpu,
    known_shape,
    relax,
    tensor_type_of,
    tir,
)

from ..ir import HALF
from ..target import target_of

R = relax()

_LAYOUTS = ("NCHW", "NHWC")


def max_pool2d_backward(bb: Any, call: Any, stock: Any) -> Any:
    """Lower the gradient of ``max_pool2d`` to a function that goes over the windows once.

    The gradient of a window belongs to the first of its maxima, or to its last NaN, as in PyTorch.

    Raises
    ------
    ValueError
        For a dilation that only TVM's own lowering supports.
    """
    found = tensor_type_of(call)
    layout, sizes = str(call_attr(call, "layout")), known_shape(found.shape)
    dtype, target = dtype_name(found.dtype), target_of(found)
    if not _is_ours(sizes, dtype, layout, target):
        if any(int(step) != 1 for step in call_attr(call, "dilation")):
            raise ValueError(
                f"max_pool2d_backward: dilation {_ints(call, 'dilation')} of {dtype} in layout "
                f"{layout} needs a processor or GPU, floats, NCHW or NHWC, images of known sizes"
            )
        return stock(bb, call)
    dy, x = call.args
    if dtype in HALF:
        dy, x = (bb.emit(R.op.astype(operand, "float32")) for operand in (dy, x))
    if layout == "NHWC":
        dy, x = (bb.emit(R.op.permute_dims(operand, [0, 3, 1, 2])) for operand in (dy, x))
    on = _of_processors if is_cpu(target) else _of_gpus
    result = on(bb, call, dy, x)
    if layout == "NHWC":
        result = R.op.permute_dims(bb.emit(result), [0, 2, 3, 1])
    return R.op.astype(bb.emit(result), dtype) if dtype in HALF else result


def _is_ours(sizes: Any, dtype: str, layout: str, target: Any) -> bool:
    from topi_ext.cpu.max_pool_grad import DTYPES

    if sizes is None or layout not in _LAYOUTS or dtype not in (*DTYPES, *HALF):
        return False
    known = [size for size, axis in zip(sizes, layout) if axis != "N" and isinstance(size, int)]
    is_indexed = len(known) == len(sizes) - 1 and prod(known) < 2**31
    return is_indexed and target is not None and (is_cpu(target) or is_gpu(target))


def _of_processors(bb: Any, call: Any, dy: Any, x: Any) -> Any:
    from topi_ext.cpu.max_pool_grad import MaxPoolGrad, max_pool_grad

    found = tensor_type_of(x)
    n, c, h, w = known_shape(found.shape)
    _, _, rows, columns = known_shape(tensor_type_of(dy).shape)
    pool = MaxPoolGrad(
        planes=(n if isinstance(n, int) else tir.Var("n", "int64"), c),
        before=(h, w),
        after=(rows, columns),
        kernel=_ints(call, "pool_size"),
        stride=_ints(call, "strides"),
        padding=_ints(call, "padding")[:2],
        dilation=_ints(call, "dilation"),
        dtype=dtype_name(found.dtype),
    )
    func = bb.add_func(max_pool_grad(pool), "max_pool2d_backward")
    return R.call_tir(func, [dy, x], found)


def _of_gpus(bb: Any, call: Any, dy: Any, x: Any) -> Any:
    from topi_ext.te.max_pool_grad import Pool, max_pool_grad

    names = ("pool_size", "strides", "padding", "dilation")
    pool = Pool(*(_ints(call, name)[:2] for name in names))
    gradient = partial(max_pool_grad, pool=pool)
    return bb.call_te(gradient, dy, x, primfunc_name_hint="max_pool2d_backward")


def _ints(call: Any, name: str) -> Any:
    return tuple(int(number) for number in call_attr(call, name))


RULES = {"relax.grad.max_pool2d_backward": max_pool2d_backward}
