# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(model, backend="tvm_conv")``, for inference and for training.

Importing this package registers the backend::

    import relax_ext.torch

    fast = torch.compile(model, backend="tvm_conv")

It also sets ``TVM_BIND_THREADS`` to 0 where it is not set, so that TVM's threads and PyTorch's do
not share one processor while another is idle.  TVM reads it when it first runs.  A compiled graph
runs on ``torch.get_num_threads()`` threads, and at most on those that TVM starts.
"""

from __future__ import annotations

from .setup import require_torch, set_threads

require_torch()
set_threads()

from .backend import tvm_conv  # noqa: E402
from .options import Options  # noqa: E402
from .report import Report, report  # noqa: E402
from .setup import register_backend  # noqa: E402

__all__ = ["Options", "Report", "report", "tvm_conv"]

register_backend(tvm_conv)
