# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own samples of its operators, forward and backward, compared in float64.

By default a few samples of each operator, drawn from a seed; all of them in the test that is
marked as slow.  Samples that the importer refuses stay in PyTorch, for the reasons in
:data:`REFUSED`.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from helpers.aten import Graphs, Unsupported, through
from helpers.deep import deep

pytest.importorskip("expecttest", reason="torch.testing._internal imports it")

from torch.testing._internal.common_methods_invocations import op_db

# That import forbids the whole process to set flags such as those of cuDNN.
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

CONVOLUTIONS = [f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)]
NORMS = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "normalize"]
POOLS = [
    f"{kind}_pool{rank}d"
    for kind in ("max", "avg", "adaptive_avg", "adaptive_max")
    for rank in (1, 2, 3)
]
ACTIVATIONS = [
    *("celu", "elu", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh"),
    *("leaky_relu", "logsigmoid", "mish", "prelu", "relu", "relu6", "selu", "silu", "softplus"),
    *("softshrink", "softsign", "tanhshrink", "threshold", "sigmoid", "tanh"),
    *("softmax", "log_softmax"),
]
OTHERS = [
    *("interpolate", "upsample_bilinear", "upsample_nearest", "pad", "pixel_shuffle"),
    *("linear", "mse_loss", "scaled_dot_product_attention"),
]
GROUPS = {
    "convolutions": CONVOLUTIONS,
    "norms": NORMS,
    "pools": POOLS,
    "activations": ACTIVATIONS,
    "others": OTHERS,
}
DRAWN = 1
"""Samples of each operator that are tried by default."""

REFUSED = (
    *("no elements", "no axes", "ord=", "divisor_override with ceil_mode", "a negative width"),
    *("differ in size", "aten.index.Tensor: no converter"),
)
"""Reasons for which samples stay in PyTorch: the last two for adaptive pooling into cells of
unequal sizes, and for ``nearest-exact``, which PyTorch takes apart."""


class Sample:
    """One call of an operator.

    Attributes
    ----------
    name : str
        The operator and the shapes of its tensors.
    tensors : list of torch.Tensor
        The tensors among its arguments.
    """

    def __init__(self, operator: Any, sample: Any) -> None:
        self._operator = operator
        arguments = (sample.input, sample.args, sample.kwargs)
        leaves, self._tree = pytree.tree_flatten(arguments)
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._leaves = leaves
        self.tensors = [leaves[place].detach() for place in self._places]
        self.wants = [leaves[place].requires_grad for place in self._places]
        shapes = [tuple(tensor.shape) for tensor in self.tensors]
        self.name = f"{operator.name} {operator.variant_test_name} {shapes} {sample.kwargs}"

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Compute with other tensors of the same shapes."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors):
            leaves[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self._tree)
        results = pytree.tree_leaves(self._operator(first, *args, **kwargs))
        return [result for result in results if isinstance(result, torch.Tensor)]


def samples_of(name: str) -> list[Sample]:
    """Return all samples of an operator whose calls are not random."""
    torch.manual_seed(0)
    found = []
    for operator in op_db:
        if operator.name.removeprefix("nn.functional.") != name:
            continue
        if torch.float64 not in operator.dtypes or operator.variant_test_name == "complex":
            continue
        samples = operator.sample_inputs("cpu", torch.float64, requires_grad=True)
        found += [Sample(operator, s) for s in samples if not s.kwargs.get("dropout_p")]
    assert found, f"PyTorch has no samples of {name}"
    return found


def evaluated(samples: list[Sample], graphs: Graphs | None) -> list[list[torch.Tensor]]:
    """Return results and gradients of each sample, all of them in one graph."""
    leaves = [
        [tensor.clone().requires_grad_(wants) for tensor, wants in zip(s.tensors, s.wants)]
        for s in samples
    ]

    def function(*flat: torch.Tensor) -> list[list[torch.Tensor]]:
        tensors = iter(flat)
        return [s([next(tensors) for _ in s.tensors]) for s in samples]

    run = function if graphs is None else through(function, graphs)
    results = run(*(tensor for group in leaves for tensor in group))
    total = torch.zeros((), dtype=torch.float64)
    for result in (r for group in results for r in group if r.requires_grad):
        weights = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64)
        total = total + (result * weights.reshape(result.shape)).sum()
    if total.requires_grad:
        total.backward()
    return [
        [*(r.detach() for r in group), *(t.grad for t in tensors if t.grad is not None)]
        for group, tensors in zip(results, leaves)
    ]


def imported(samples: list[Sample]) -> tuple[list[Sample], dict[str, str]]:
    """Return the samples that the importer takes, and why it refuses the others."""
    taken, refused = [], {}
    for sample in samples:
        try:
            evaluated([sample], Graphs(only_imports=True))
            taken.append(sample)
        except Unsupported as error:
            refused[sample.name] = str(error)
    return taken, refused


def compare(samples: list[Sample]) -> None:
    """Compare samples with PyTorch.

    The limit is 1e-11 of the largest value, for sums of 1,000 products, and 1e-13 where gradients
    of rows of two elements cancel.  PyTorch's gradient of hardsigmoid is 1/6 in float32.
    """
    found, wanted = evaluated(samples, Graphs()), evaluated(samples, None)
    wrong = []
    for sample, got, want in zip(samples, found, wanted):
        assert [t.shape for t in got] == [t.shape for t in want], sample.name
        assert [t.dtype for t in got] == [t.dtype for t in want], sample.name
        for one, other in zip(got, want):
            scale = float(other.double().nan_to_num().abs().max()) if other.numel() else 0.0
            relative = 1e-7 if "hardsigmoid" in sample.name else 1e-11
            limits = {"rtol": 0, "atol": relative * scale + 1e-13, "equal_nan": True}
            if not torch.allclose(one.double(), other.double(), **limits):
                wrong.append(sample.name)
    assert wrong == []


def tried(names: list[str], drawn: int | None) -> None:
    """Try samples of operators in one graph, or all samples of each operator."""
    together = []
    for name in names:
        samples = samples_of(name)
        if drawn is not None:
            samples = random.Random(name).sample(samples, min(drawn, len(samples)))
        taken, refused = imported(samples)
        unknown = {n: why for n, why in refused.items() if not any(r in why for r in REFUSED)}
        assert unknown == {}
        together += taken
    compare(together)


@pytest.mark.parametrize("group", ["convolutions", "pools"])
def test_samples(group: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tried(GROUPS[group], DRAWN)


@deep
@pytest.mark.parametrize("name", [name for names in GROUPS.values() for name in names])
def test_all_samples(name: str) -> None:
    """Test all samples; of maximum pools, which have 500 to 1,500, every tenth."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = samples_of(name)
        tried([name], min(len(samples), 100))
