# SPDX-License-Identifier: Apache-2.0
"""Names that are looked up in PyTorch, and would be left out silently: this release has them."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from relax_ext.aten import stock
from relax_ext.aten.operators import IMPORTED
from relax_ext.torch import decompositions, draws
from relax_ext.torch.aten import CONVERTERS

TABLES: dict[str, Collection[str]] = {
    "compiled": CONVERTERS,
    "imported": IMPORTED,
    "drawn": draws._OF_A_SHAPE,
    "random": stock.RANDOM,
    "read": stock._READ,
    "wrong": stock._WRONG,
    "all results": stock._ALL_RESULTS,
}
"""Names of operators, some with an overload."""


def exists(name: str) -> bool:
    packet, _, overload = name.partition(".")
    rooms = (torch.ops.aten, torch.ops.prims, torch.ops.quantized_decomposed, torch.ops.torchao)
    found = [getattr(room, packet) for room in rooms if hasattr(room, packet)]
    return any(not overload or overload in one.overloads() for one in found)


@pytest.mark.parametrize("table", TABLES)
def test_operators_that_are_named_exist(table: str) -> None:
    import torch.ao.quantization.fx._decomposed  # noqa: F401  # adds quantized_decomposed

    reason = "two of the operators are torchao's"
    if table == "imported":
        pytest.importorskip("torchao.quantization", reason=reason)
    assert TABLES[table] and not [name for name in TABLES[table] if not exists(name)]


@pytest.mark.parametrize("name", decompositions.RESIZES)
def test_pytorch_decomposes_resizes_by_kernels_in_python(name: str) -> None:
    """They are replaced while a graph is traced; some overloads have none."""
    keys = {torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd}
    overloads = decompositions._overloads(name)
    assert len(overloads) >= 2 and any(keys & one.py_kernels.keys() for one in overloads)
