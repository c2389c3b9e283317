# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(model, backend="tvm_conv")``, for inference and for training.

Importing this package registers the backend::

    import relax_ext.torch

    fast = torch.compile(model, backend="tvm_conv")

It also sets, where they are not set, two variables of the environment that TVM reads when it first
runs: ``TVM_NUM_THREADS`` to the processors that this process may use, and ``TVM_BIND_THREADS`` to
0, so that TVM's threads and PyTorch's do not share one processor while another is idle.  A compiled
graph runs on ``torch.get_num_threads()`` of these threads.
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
