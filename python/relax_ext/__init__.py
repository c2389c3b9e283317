# SPDX-License-Identifier: Apache-2.0
"""Correct and fast convolutions, transposed convolutions and their gradients for TVM's Relax.

Importing this package registers it; nothing else changes::

    import tvm, relax_ext

    executable = tvm.compile(module, relax_ext.host_target())
    with relax_ext.stock():
        ...                       # stock TVM again, for comparing
"""

from topi_ext.compat import relax as _require_relax

_require_relax()

from topi_ext.compat import ffi_fault as _ffi_fault  # noqa: E402
from topi_ext.compat import untested as _untested  # noqa: E402
from topi_ext.notices import warn_once as _warn_once  # noqa: E402

for _warning in filter(None, (_untested(), _ffi_fault())):
    _warn_once(f"relax_ext: {_warning}")

from topi_ext.precision import float32_precision  # noqa: E402
from topi_ext.processors import set_default_threads as _set_default_threads  # noqa: E402
from topi_ext.target import host_target  # noqa: E402

from . import optimizers  # noqa: E402
from .op.ops import conv_transpose, conv_weight_grad  # noqa: E402
from .pipeline import pipeline  # noqa: E402
from .registry import register, stock, unregister  # noqa: E402
from .training_step import training  # noqa: E402
from .tune import tune  # noqa: E402

__all__ = [
    "conv_transpose",
    "conv_weight_grad",
    "float32_precision",
    "host_target",
    "optimizers",
    "pipeline",
    "register",
    "stock",
    "training",
    "tune",
    "unregister",
]

_set_default_threads()
register()
