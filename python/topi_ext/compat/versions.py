# SPDX-License-Identifier: Apache-2.0
"""The version of TVM, and its modules by the names that this package uses."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

try:
    import tvm
except ImportError as error:
    raise ImportError(f"topi_ext: needs TVM (pip install apache-tvm): {error}") from error

from tvm.script.ir_builder import IRBuilder

try:
    from tvm.script.ir_builder import tirx as script
except ImportError:
    from tvm.script.ir_builder import tir as script

__all__ = ["IRBuilder", "script", "tvm"]

tir = getattr(tvm, "tirx", None) or tvm.tir
s_tir = getattr(tvm, "s_tir", None) or tvm.tir
arith = getattr(tvm, "sym", None) or tvm.arith
StringImm = getattr(tir, "StringImm", None) or tvm.ir.StringImm
LETS_ARE_FRAMES = not hasattr(script, "bind")
"""Before TVM 0.25 a variable or an allocation is a frame around the statements that follow it."""
ADDRESSES_HAVE_TYPES = hasattr(tir.IntImm("int64", 0), "ty")
"""Before TVM 0.26 a buffer cannot be declared at the address of an element."""


def release() -> str:
    """Return version and folder of the imported TVM."""
    return f"{tvm.__version__}, {os.path.dirname(tvm.__file__)}"


TESTED = "TVM 0.17 (Relay), 0.25, 0.26, 0.27, and the main branch before 0.28"
"""The releases of TVM that were tested: docs/reference/compatibility.md states how."""
NEWEST_TESTED = (0, 28)


def untested() -> str | None:
    """Return a warning if TVM is newer than the tested releases; None otherwise."""
    version = re.match(r"(\d+)\.(\d+)", tvm.__version__)
    if version is None or tuple(map(int, version.groups())) <= NEWEST_TESTED:
        return None
    return f"tvm {tvm.__version__} is newer than the tested releases: {TESTED}"


@cache
def relax() -> Any:
    """Return the module ``tvm.relax``.

    Raises
    ------
    ImportError
        If this TVM has no Relax that this package supports.
    """
    try:
        from tvm import relax as module
    except ImportError:
        module = None
    if module is None or not hasattr(tvm, "tirx"):
        version = getattr(tvm, "__version__", "of unknown version")
        raise ImportError(
            f"relax_ext: needs apache-tvm 0.25 to 0.27, which has Relax; found tvm {version}"
        )
    return module


@cache
def relay() -> Any:
    """Return the module ``tvm.relay``.

    Raises
    ------
    ImportError
        If this TVM has no Relay, or lacks a name that this package uses.
    """
    version = getattr(tvm, "__version__", "of unknown version")
    try:
        from tvm import relay as module
    except ImportError:
        raise ImportError(
            f"relay_ext: needs a TVM that has Relay, such as 0.17; found tvm {version}"
        ) from None
    needed = {
        "tvm.target.override_native_generic_func": (tvm.target, "override_native_generic_func"),
        "tvm.te.extern": (tvm.te, "extern"),
        "tvm.te.create_schedule": (tvm.te, "create_schedule"),
        "tvm.relay.op.op.OpStrategy": (module.op.op, "OpStrategy"),
        "tvm.relay.backend.te_compiler": (module.backend, "te_compiler"),
        "tvm.script.ir_builder.tir.LetStmt": (script, "LetStmt"),
        "tvm.tir.Any": (tir, "Any"),
    }
    missing = [name for name, (owner, attribute) in needed.items() if not hasattr(owner, attribute)]
    if missing:
        raise ImportError(f"relay_ext: tvm {version} lacks {', '.join(missing)}")
    return module


def process_state(package: str) -> dict[str, Any]:
    """Return state of `package` for the life of the process, which a second import finds."""
    return vars(tvm).setdefault(f"_state_of_{package}", {})
