# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(model, backend="tvm_conv")``, for inference and for training.

Importing this package registers the backend::

    import relax_ext.torch

    fast = torch.compile(model, backend="tvm_conv")

A compiled graph runs on ``torch.get_num_threads()`` threads of PyTorch's own OpenMP runtime; where
PyTorch has none, on those of TVM, with a warning.
"""

from __future__ import annotations

from .setup import require_torch

require_torch()

from . import openmp  # noqa: E402
from .backend import tvm_conv  # noqa: E402
from .options import Options  # noqa: E402
from .report import Report, report  # noqa: E402
from .setup import register_backend  # noqa: E402

__all__ = ["Options", "Report", "report", "tvm_conv"]

register_backend(tvm_conv)
openmp.install()
