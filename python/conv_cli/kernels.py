# SPDX-License-Identifier: Apache-2.0
"""``doctor MODEL``: the kernels and plans of a model, and the functions that TVM computes."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from topi_ext.kernel.info import KernelInfo
from topi_ext.notices import one_line

from .adapter import Adapter
from .check import target_text
from .errors import CliError
from .model import Options, load
from .targets import parse_target


@dataclass(frozen=True)
class Kernels:
    """The functions that a model is compiled to.

    Attributes
    ----------
    model, target : str
    ours : list of KernelInfo
        Kernels of this package.
    others : list of str
        Names of the functions that TVM computes.
    """

    model: str
    target: str
    ours: list[KernelInfo]
    others: list[str]

    def lines(self) -> list[str]:
        """Return the report: a line for each kernel, and one for the rest."""
        others = Counter(name.rstrip("0123456789").rstrip("_") for name in self.others)
        rest = ", ".join(f"{name} ({n})" if n > 1 else name for name, n in sorted(others.items()))
        return [
            f"{self.model} on {self.target}",
            *(info.line() for info in self.ours),
            f"{len(self.ours)} kernels; TVM computes {rest or 'nothing else'}",
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "ours": [asdict(info) for info in self.ours]}


def chosen_kernels(adapter: Adapter, path: Path, options: Options) -> Kernels:
    """Return the kernels that the adapter's pipeline chooses for a model.

    Raises
    ------
    CliError
        One line, where the model cannot be read or lowered.
    """
    target = parse_target(options.target, options.threads)
    model = load(path, adapter.loaders, options)
    try:
        ours, others = adapter.kernels(model.mod, target)
    except CliError:
        raise
    except Exception as error:
        raise CliError(f"{model.name}: does not compile: {one_line(error)}") from error
    return Kernels(model.name, target_text(target), ours, others)
