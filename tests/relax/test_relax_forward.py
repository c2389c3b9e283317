# SPDX-License-Identifier: Apache-2.0
"""Forward values through ``import relax_ext`` and plain ``tvm.compile``, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relax_ext
from helpers.build import check_forward
from helpers.cases import Case, cases
from helpers.named import NAMED, C, T
from helpers.profile import compiling


def test_named_cases(rng: np.random.Generator) -> None:
    """All in one module, as a network would have them."""
    check_forward(list(NAMED.values()), rng)


@pytest.mark.parametrize("op", [T, C])
@pytest.mark.parametrize("rank", [1, 2, 3])
@compiling(1)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_any_call(op: str, rank: int, data, seed: int) -> None:
    some = data.draw(st.lists(cases(op, rank), min_size=12, max_size=12))
    check_forward(some, np.random.default_rng(seed))


@pytest.mark.parametrize("op", [T, C])
@compiling(1)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_any_call_as_wide_as_vectors(op: str, data, seed: int) -> None:
    """Channels and sizes around the widths of vector registers and tiles, bodies and tails."""
    wide = st.one_of(
        cases(op, 2, channels=(7, 8, 16, 17, 33), groups=(1, 1, 2), size=19),
        cases(op, 1, channels=(1, 15, 16, 31, 48), groups=(1, 2), size=70),
        cases(op, 2, channels=(1,), groups=(8, 19, 32), size=35),
    )
    some = data.draw(st.lists(wide, min_size=9, max_size=9))
    check_forward(some, np.random.default_rng(seed))


@pytest.mark.smoke
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("op", [T, C])
def test_smoke(op: str, rank: int, rng: np.random.Generator) -> None:
    """Every attribute at once; for a transposed convolution this is what no stock release does."""
    case = Case(
        op, (4, 5, 3)[:rank], (3, 2, 2)[:rank], ins=4, outs=6, groups=2, stride=(2, 1, 2)[:rank],
        padding=(1, 0, 2, 0, 1, 1)[: 2 * rank], dilation=(2, 3, 1)[:rank],
        output_padding=(1, 2, 0)[:rank] if op == T else (),
    )  # fmt: skip
    check_forward([case], rng)


def test_the_fix_is_what_these_tests_see(rng: np.random.Generator) -> None:
    """Stock TVM fails where PyTorch allows an output padding between stride and dilation."""
    with relax_ext.stock(), pytest.raises(Exception, match="output padding"):
        check_forward([NAMED["output padding between stride and dilation"]], rng)
    check_forward([NAMED["output padding between stride and dilation"]], rng)
