# SPDX-License-Identifier: Apache-2.0
"""Correct and fast convolutions, transposed convolutions and their gradients for TVM's Relay.

Importing this package registers it; nothing else changes::

    import relay_ext
    from tvm import relay

    library = relay.build(module, relay_ext.host_target())
    with relay_ext.stock():
        ...                       # stock Relay again, for comparing
"""

from . import locate_tvm

locate_tvm.find_tvm()

from topi_ext.compat import relay as _require_relay  # noqa: E402

_require_relay()

from topi_ext.precision import float32_precision  # noqa: E402
from topi_ext.processors import set_default_threads as _set_default_threads  # noqa: E402
from topi_ext.target import host_target  # noqa: E402

from .registry import register, stock, unregister  # noqa: E402

__all__ = ["float32_precision", "host_target", "register", "stock", "unregister"]

_set_default_threads()
register()
