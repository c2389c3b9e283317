# SPDX-License-Identifier: Apache-2.0
"""The convolutions of a module: finding them, and computing them by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(frozen=True)
class Operator:
    """One configuration of ``nn.conv{1,2,3}d`` or ``nn.conv{1,2,3}d_transpose``.

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

    @classmethod
    def of(
        cls,
        name: str,
        attrs: Any,
        shapes: Sequence[tuple[int, ...]],
        dtypes: tuple[str, str, str],
        layouts: tuple[str, str, str],
    ) -> Operator:
        """Return the operator `name` with TVM's attributes, and shapes of data and weight."""
        rank = len(attrs.strides)
        padding = tuple(int(p) for p in attrs.padding)
        if len(padding) < 2 * rank:
            padding = padding * (2 * rank // len(padding))
        extra = None
        if name.endswith("_transpose"):
            extra = tuple(int(p) for p in attrs.output_padding)
        return cls(
            name=name,
            data=shapes[0],
            weight=shapes[1],
            dtypes=dtypes,
            strides=tuple(int(s) for s in attrs.strides),
            padding=padding,
            dilation=tuple(int(d) for d in attrs.dilation),
            groups=int(attrs.groups),
            layouts=layouts,
            output_padding=extra,
        )

    def attributes(self) -> dict[str, Any]:
        """Return the attributes as keyword arguments of TVM's operator."""
        found: dict[str, Any] = dict(
            strides=self.strides,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            data_layout=self.layouts[0],
            kernel_layout=self.layouts[1],
            out_layout=self.layouts[2],
            out_dtype=self.dtypes[2],
        )
        if self.output_padding is not None:
            found["output_padding"] = self.output_padding
        return found

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.strides)

    @property
    def transposed(self) -> bool:
        """Return whether this is a transposed convolution."""
        return self.output_padding is not None

    @property
    def floating(self) -> bool:
        """Return whether there is anything to differentiate."""
        return all("float" in d for d in self.dtypes)

    def configuration(self) -> str:
        """Return a description for tables, e.g. ``1x64x32x32 * 64x32x4x4 s2 p1``, without
        defaults.
        """
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


def random_tensor(shape: tuple[int, ...], dtype: Any, generator: Any) -> Any:
    """Normal numbers, small integers or booleans of the given torch dtype."""
    import torch

    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    low = 0 if dtype == torch.uint8 else -4
    return torch.randint(low, 5, shape, generator=generator).to(dtype)


def random_data(op: Operator, seed: int) -> list[Any]:
    """Random ``[x, w]`` for an operator, as torch tensors in its dtypes."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [
        random_tensor(shape, getattr(torch, dtype), generator)
        for shape, dtype in ((op.data, op.dtypes[0]), (op.weight, op.dtypes[1]))
    ]


def torch_apply(op: Operator, x: Any, w: Any) -> Any:
    """Return the operator by PyTorch, in the dtype of its arguments.

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


def with_cotangent(op: Operator, seed: int) -> list[Any]:
    """Random ``[x, w, dy]``: data, weight and a gradient of the result."""
    import torch

    x, w = random_data(op, seed)
    y = torch_apply(op, x, w)
    dy = random_tensor(tuple(y.shape), y.dtype, torch.Generator().manual_seed(seed + 1))
    return [x, w, dy]


def gradients_by_torch(op: Operator, tensors: list[Any]) -> list[Any]:
    """``[dx, dw]`` for ``[x, w, dy]``, by torch.autograd."""
    import torch

    x, w = (t.detach().requires_grad_() for t in tensors[:2])
    return list(torch.autograd.grad(torch_apply(op, x, w), (x, w), tensors[2]))


def _permute(t: Any, layout: str, wanted: str) -> Any:
    return t if layout == wanted else t.permute([layout.index(c) for c in wanted])


def _pad_list(before: Any, after: Any) -> list[int]:
    """``before`` and ``after`` per axis in the order of ``torch.nn.functional.pad``."""
    pairs = list(zip(before, after))
    return [p for pair in reversed(pairs) for p in pair]
