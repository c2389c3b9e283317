# SPDX-License-Identifier: Apache-2.0
"""Output padding of transposed convolutions: below the stride or the dilation"""

import pytest

import tvm.testing
from tvm import relax
from tvm.script import relax as R


def _infer(rank, **attrs):
    x = relax.Var("x", R.Tensor((1, 2, *(4,) * rank), "float32"))
    w = relax.Var("w", R.Tensor((2, 2, *(2,) * rank), "float32"))
    attrs = {key: (value,) * rank for key, value in attrs.items()}
    op = getattr(relax.op.nn, f"conv{rank}d_transpose")
    return relax.BlockBuilder().normalize(op(x, w, **attrs)).ty.shape


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_output_padding(rank):
    assert int(_infer(rank, strides=1, dilation=3, output_padding=2)[2]) == 9
    assert int(_infer(rank, strides=3, dilation=1, output_padding=2)[2]) == 13
    for wrong in (3, -1):
        with pytest.raises(ValueError, match="output padding"):
            _infer(rank, strides=3, dilation=2, output_padding=wrong)


if __name__ == "__main__":
    tvm.testing.main()
