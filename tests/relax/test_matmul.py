# SPDX-License-Identifier: Apache-2.0
"""Matrix products of whole models in the pipeline, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import Tensor, nn
from torch.nn import functional as F
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

from helpers import build
from helpers.whole import Function, check, compiled, ours
from topi_ext.compat import tir

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention with heads as frameworks store them: between positions and channels."""
    q, k, v = (one.permute(0, 2, 1, 3) for one in (q, k, v))
    return nn.functional.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3)


MODELS = {
    "linear": (nn.Linear(24, 40), [(2, 7, 24)], ["matmul_add", "matmul_pack"]),
    "one row": (nn.Linear(24, 40), [(1, 24)], None),
    "one column": (nn.Linear(24, 1), [(6, 24)], None),
    "activations behind a view": (
        nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 13), nn.Tanh()),
        [(3, 7, 24)],
        ["matmul_add_relu", "matmul_add_tanh", "matmul_pack", "matmul_pack1"],
    ),
    "variable": (Function(torch.matmul), [(5, 24), (24, 11)], ["matmul"]),
    "batched": (Function(torch.bmm), [(3, 5, 24), (3, 24, 11)], ["matmul"]),
    "broadcast": (Function(torch.matmul), [(2, 1, 5, 24), (3, 24, 11)], ["matmul"]),
    "broadcast left": (Function(torch.matmul), [(5, 24), (2, 3, 24, 11)], ["matmul"]),
    "transposed": (
        Function(lambda a, b: a.transpose(1, 2) @ b.transpose(1, 2)),
        [(3, 24, 5), (3, 11, 24)],
        ["matmul"],
    ),
    "vector": (Function(torch.matmul), [(24,), (24, 11)], None),
    "residual": (
        Function(lambda a, b, c: a @ b + c),
        [(2, 5, 24), (24, 11), (2, 5, 11)],
        ["matmul_add"],
    ),
    "residual of a batch": (
        Function(lambda a, b, c: a @ b + c),
        [(4, 5, 24), (24, 11), (4, 1, 11)],
        ["matmul_add"],
    ),
    "gelu": (
        nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 13)),
        [(3, 7, 24)],
        ["matmul_add", "matmul_add_gelu"],
    ),
    "transposed result": (
        Function(lambda a, b: F.silu((a @ b).permute(0, 2, 1, 3).reshape(2, 5, 22)) + 1),
        [(2, 2, 5, 24), (24, 11)],
        ["matmul_sigmoid_multiply_add"],
    ),
    "result whose rows become columns": (
        Function(lambda a, b: (a @ b).permute(0, 2, 1).tanh()),
        [(2, 5, 24), (24, 11)],
        None,
    ),
    "scaled operands": (
        Function(lambda a, b: (a.permute(0, 2, 1) * 0.5) @ (b * 3)),
        [(2, 24, 5), (2, 24, 11)],
        ["matmul"],
    ),
    "residual of one": (Function(lambda a, b, c: a @ b * c), [(5, 24), (24, 11), (1, 1)], None),
    "residual of one, of one row": (
        Function(lambda a, b, c: a @ b * c),
        [(1, 24), (24, 11), (1, 1)],
        None,
    ),
    "residual of one, of one column": (
        Function(lambda a, b, c: a @ b + c),
        [(5, 24), (24, 1), (1,)],
        None,
    ),
    "residual of one, of a convolution": (
        Function(lambda a, b, c: nn.functional.conv2d(a, b) + c),
        [(1, 24, 1, 1), (11, 24, 1, 1), (1, 1, 1, 1)],
        ["conv2d_add"],
    ),
    "attention": (Function(attention), [(2, 9, 3, 16)] * 3, ["attention"]),
    "encoder": (
        nn.TransformerEncoderLayer(24, 4, 48, batch_first=True, activation="gelu"),
        [(2, 7, 24)],
        None,
    ),
    "lstm": (nn.LSTM(8, 12, batch_first=True), [(2, 4, 8)], None),
}


@pytest.mark.parametrize("name", MODELS)
def test_values(name: str) -> None:
    """Right, and by kernels of ours, with what follows in them and weights packed."""
    torch.manual_seed(0)
    model, shapes, names = MODELS[name]
    found = check(model, *(torch.randn(shape) for shape in shapes))
    # A weight is packed when the model is compiled: its function is gone then.
    assert names is None or found == [one for one in names if "pack" not in one]


def test_no_transpose_is_left() -> None:
    """No transpose of heads is left, nor of a batch that is merged with them."""
    shape = (2, 9, 3, 16)
    scores = Function(lambda q, k: q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1))
    mod = from_exported_program(torch.export.export(scores, (torch.randn(shape),) * 2))
    _, module = compiled(mod)
    names = [name.name_hint for name, _ in module.functions_items()]
    assert "matmul" in names and not any("transpose" in name for name in names)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    """Sums of float16 and bfloat16 are float32: as near as one rounding."""
    rng = np.random.default_rng(0)
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    a, b = (rng.standard_normal(s).astype(kind) for s in ((3, 5, 64), (64, 33)))
    run, module = compiled(build.module(lambda x, w: relax.op.nn.relu(relax.op.matmul(x, w)), a, b))
    assert ours(module) == ["matmul_relu"]
    got = run(tvm.runtime.tensor(a), tvm.runtime.tensor(b)).numpy().astype("float64")
    want = np.maximum(a.astype("float64") @ b.astype("float64"), 0)
    limit = {"float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit)


@pytest.mark.parametrize("is_constant", [False, True], ids=["variable", "constant"])
def test_symbolic_sizes(is_constant: bool) -> None:
    """Batch, rows, columns and terms that are known when it runs."""
    rng = np.random.default_rng(1)
    n, m, k, f = (tir.Var(name, "int64") for name in "nmkf")
    terms, columns = (24, 17) if is_constant else (k, f)
    shapes = [[n, m, terms], [n, columns, terms]][: 1 if is_constant else 2]
    weight = rng.standard_normal((17, 24)).astype("float32")

    def body(x: Any, w: Any = None) -> Any:
        right = relax.const(weight) if is_constant else w
        right = relax.op.permute_dims(right, [1, 0] if is_constant else [0, 2, 1])
        return relax.op.nn.relu(relax.op.matmul(x, right))

    run, module = compiled(build.module(body, *shapes))
    assert ours(module) == ["matmul_relu"]
    for sizes in ((1, 1, 24, 17), (3, 50, 24, 17), (2, 7, 24, 17), (2, 13, 301, 5), (4, 0, 3, 9)):
        if is_constant and sizes[2:] != (24, 17):
            continue
        a = rng.standard_normal(sizes[:3]).astype("float32")
        b = rng.standard_normal((sizes[0], sizes[3], sizes[2])).astype("float32")
        given = [tvm.runtime.tensor(a)] + ([] if is_constant else [tvm.runtime.tensor(b)])
        got = run(*given).numpy()
        of = weight if is_constant else b
        want = np.maximum(a.astype("float64") @ np.swapaxes(of, -1, -2), 0)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_symbolic_terms_of_a_transposed_operand(dtype: str) -> None:
    """The gradient of a linear layer's weight: rows are copied by parts of the terms."""
    rng = np.random.default_rng(1)
    k = tir.Var("k", "int64")

    def product(x: Any, w: Any) -> Any:
        return relax.op.matmul(relax.op.permute_dims(x, [1, 0]), w)

    run, module = compiled(build.module(product, [k, 13], [k, 21], dtype=dtype))
    assert len(ours(module)) == 1
    for terms in (1, 7, 300, 801):
        a, b = (rng.standard_normal((terms, size)).astype(dtype) for size in (13, 21))
        want = a.T.astype("float64") @ b.astype("float64")
        got = run(tvm.runtime.tensor(a), tvm.runtime.tensor(b)).numpy()
        limit = 1e-4 if dtype == "float32" else 1e-3 * np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=limit)


def test_what_is_left_to_tvm() -> None:
    """Integers, and products without elements."""
    for dtype, shapes in (("int32", ((5, 6), (6, 7))), ("float32", ((5, 0), (0, 7)))):
        run, module = compiled(build.module(relax.op.matmul, *shapes, dtype=dtype))
        assert ours(module) == []
        a, b = (np.arange(np.prod(s)).reshape(s).astype(dtype) for s in shapes)
        got = run(tvm.runtime.tensor(a), tvm.runtime.tensor(b)).numpy()
        np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize(
    ("factors", "data", "weight", "is_moved"),
    [
        ((1e-10,), 1e25, 1e20, False),  # the sums alone are beyond float32
        ((1e30, 1e30), 1e-30, 1.0, False),  # their product is
        ((1e10,), 1e-30, 1e-12, False),  # products alone are below it
        ((0.125,), 1.0, 1.0, True),  # attention's
    ],
)
def test_a_factor_is_moved_behind_the_sums_where_these_stay_in_range(
    factors: tuple[float, ...], data: float, weight: float, is_moved: bool
) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for factor in factors:
            x = x * factor
        return x.transpose(0, 1) @ w

    x, w = torch.full((8, 16), data), torch.full((8, 32), weight)
    mod = from_exported_program(torch.export.export(Function(function).eval(), (x, w)))
    run, module = compiled(mod)
    (got,) = run(*(tvm.runtime.tensor(one.numpy()) for one in (x, w)))
    want = function(x.double(), w.double()).numpy()
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)
    names = [name.name_hint for name, _ in module.functions_items()]
    assert any("multiply" in name for name in names) != is_moved
