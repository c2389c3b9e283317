# SPDX-License-Identifier: Apache-2.0
"""The convolutions of a Relax module: found, counted, rebuilt alone, and done by PyTorch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from topi_ext import tvm_compat

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(frozen=True)
class Operator:
    """One configuration of ``relax.nn.conv{1,2,3}d`` or ``relax.nn.conv{1,2,3}d_transpose``.

    ``data`` and ``weight`` are shapes in the operator's own layouts; ``padding`` is before all
    axes, then after all axes.
    """

    name: str
    data: tuple[int, ...]
    weight: tuple[int, ...]
    dtypes: tuple[str, str, str]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    layouts: tuple[str, str, str]
    output_padding: tuple[int, ...] | None = None

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.strides)

    @property
    def transposed(self) -> bool:
        """Whether this is a transposed convolution."""
        return self.output_padding is not None

    @property
    def floating(self) -> bool:
        """Whether there is anything to differentiate."""
        return all("float" in d for d in self.dtypes)

    def configuration(self) -> str:
        """What a table says, e.g. ``1x64x32x32 * 64x32x4x4 s2 p1``; defaults are left out."""
        parts = ["x".join(map(str, self.data)) + " * " + "x".join(map(str, self.weight))]
        before, after = self.padding[: self.rank], self.padding[self.rank :]
        for key, value, default in (
            ("s", self.strides, 1),
            ("p", before if before == after else self.padding, 0),
            ("op", self.output_padding or (), 0),
            ("d", self.dilation, 1),
        ):
            if any(v != default for v in value):
                shown = str(value[0]) if len(set(value)) == 1 else ",".join(map(str, value))
                parts.append(key + shown)
        if self.groups != 1:
            parts.append(f"g{self.groups}")
        spatial = SPATIAL[self.rank]
        usual = ("NC" + spatial, ("IO" if self.transposed else "OI") + spatial, "NC" + spatial)
        if self.layouts != usual:
            parts.append(" ".join(self.layouts))
        if set(self.dtypes) != {"float32"}:
            parts.append(self.dtypes[0] if len(set(self.dtypes)) == 1 else "/".join(self.dtypes))
        return " ".join(parts)


def _shape(expr: Any) -> tuple[int, ...]:
    return tvm_compat.known_shape(tvm_compat.type_of(expr).shape)


def _dtype(expr: Any) -> str:
    return tvm_compat.dtype_name(tvm_compat.type_of(expr).dtype)


def _operator(call: Any) -> Operator:
    a = call.attrs
    rank = len(a.strides)
    padding = tuple(int(p) for p in a.padding)
    if len(padding) < 2 * rank:
        padding = padding * (2 * rank // len(padding))
    data, weight = call.args[:2]
    transposed = call.op.name.endswith("_transpose")
    return Operator(
        name=call.op.name.removeprefix("relax.nn."),
        data=_shape(data),
        weight=_shape(weight),
        dtypes=(_dtype(data), _dtype(weight), _dtype(call)),
        strides=tuple(int(s) for s in a.strides),
        padding=padding,
        dilation=tuple(int(d) for d in a.dilation),
        groups=int(a.groups),
        layouts=(str(a.data_layout), str(a.kernel_layout), str(a.out_layout or a.data_layout)),
        output_padding=tuple(int(p) for p in a.output_padding) if transposed else None,
    )


NAMES = frozenset(f"relax.nn.conv{r}d{t}" for r in (1, 2, 3) for t in ("", "_transpose"))


def find(mod: Any) -> Counter[Operator]:
    """Every different convolution of a module with static shapes, and how often it occurs."""
    import tvm
    from tvm import relax

    found: Counter[Operator] = Counter()

    def visit(expr: Any) -> None:
        if (
            isinstance(expr, relax.Call)
            and isinstance(expr.op, tvm.ir.Op)
            and expr.op.name in NAMES
        ):
            found[_operator(expr)] += 1

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, visit)
    return found


def build(op: Operator) -> Any:
    """A module whose ``main(x, w)`` is this operator alone."""
    from tvm import relax

    ndim = op.rank + 2
    x = relax.Var("x", tvm_compat.tensor_type(op.data, op.dtypes[0], ndim))
    w = relax.Var("w", tvm_compat.tensor_type(op.weight, op.dtypes[1], ndim))
    attrs: dict[str, Any] = dict(
        strides=op.strides,
        padding=op.padding,
        dilation=op.dilation,
        groups=op.groups,
        data_layout=op.layouts[0],
        kernel_layout=op.layouts[1],
        out_layout=op.layouts[2],
        out_dtype=op.dtypes[2],
    )
    if op.output_padding is not None:
        attrs["output_padding"] = op.output_padding
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            y = bb.emit_output(bb.emit(getattr(relax.op.nn, op.name)(x, w, **attrs)))
        bb.emit_func_output(y)
    return bb.get()


def random_data(op: Operator, seed: int) -> list[Any]:
    """Random ``[x, w]`` for an operator, as torch tensors in its dtypes."""
    import torch

    from relax_ext.cli.model import random_tensor

    generator = torch.Generator().manual_seed(seed)
    return [
        random_tensor(shape, getattr(torch, dtype), generator)
        for shape, dtype in ((op.data, op.dtypes[0]), (op.weight, op.dtypes[1]))
    ]


def torch_apply(op: Operator, x: Any, w: Any) -> Any:
    """The operator by PyTorch, in the dtype of its arguments.

    A transposed convolution that PyTorch does not accept (asymmetric padding, much output padding)
    is its unpadded one, cropped and extended.
    """
    import torch.nn.functional as F

    spatial = SPATIAL[op.rank]
    order = ("IO" if op.transposed else "OI") + spatial
    x = _permute(x, op.layouts[0], "NC" + spatial)
    w = _permute(w, op.layouts[1], order)
    before, after = op.padding[: op.rank], op.padding[op.rank :]
    fn = getattr(F, "conv_transpose" + f"{op.rank}d" if op.transposed else f"conv{op.rank}d")
    same: dict[str, Any] = dict(stride=op.strides, dilation=op.dilation, groups=op.groups)
    plain = before == after and min(before) >= 0
    if op.output_padding is None:
        y = (
            fn(x, w, padding=before, **same)
            if plain
            else fn(F.pad(x, _pad_list(before, after)), w, **same)
        )
    else:
        extra = op.output_padding
        limits = [max(s, d) for s, d in zip(op.strides, op.dilation)]
        if plain and all(e < m for e, m in zip(extra, limits)):
            y = fn(x, w, padding=before, output_padding=extra, **same)
        else:
            ends = [e - a for e, a in zip(extra, after)]
            y = F.pad(fn(x, w, **same), _pad_list([-b for b in before], ends))
    return _permute(y, "NC" + spatial, op.layouts[2])


def _permute(t: Any, layout: str, wanted: str) -> Any:
    return t if layout == wanted else t.permute([layout.index(c) for c in wanted])


def _pad_list(before: Any, after: Any) -> list[int]:
    """``before`` and ``after`` per axis in the order of ``torch.nn.functional.pad``."""
    pairs = list(zip(before, after))
    return [p for pair in reversed(pairs) for p in pair]
