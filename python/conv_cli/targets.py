# SPDX-License-Identifier: Apache-2.0
"""``--target``: reads it, and raises if its code could not run on this machine."""

from __future__ import annotations

import json
import platform
from typing import Any

import tvm

from topi_ext import compat
from topi_ext.notices import one_line
from topi_ext.target import host_target

from .errors import CliError, no_output


def parse_target(text: str | None, threads: int, here: bool = True) -> Any:
    """Return the target of ``--target``: a kind, a JSON dict, or this machine.

    Unless it is to run ``here``, it may be another machine's.

    Raises
    ------
    CliError
        LLVM would warn of an unknown processor and take another, and it ends the
        process over an unknown triple or an instruction that this processor lacks.
    """
    if text is None:
        return host_target(threads)
    try:
        spec = json.loads(text) if text.lstrip().startswith("{") else {"kind": text}
        target = tvm.target.Target(spec)
    except Exception as error:
        raise CliError(f"--target {text}: {one_line(error)}") from error
    host = target if target.kind.name == "llvm" else target.host
    runs_here = here and host is target
    if host is not None and (reason := _reason(host, runs_here)):
        raise CliError(f"--target {text}: {reason}")
    return target


def _reason(target: Any, here: bool) -> str:
    """Why LLVM cannot compile for an llvm target, or its code not run here, or an empty string."""
    cores = target.attrs.get("num-cores")
    if cores is not None and int(cores) < 1:
        return f"num-cores={int(cores)} must be positive"
    triple, processor = (str(target.attrs.get(key, "")) for key in ("mtriple", "mcpu"))
    of_this_system = platform.system().lower() in triple or "-" not in triple
    if here and not (compat.is_for_this_machine(target) and of_this_system):
        return f"mtriple={triple} is not of this machine, {compat.system_triple()}"
    with no_output():  # LLVM says it too
        if not compat.knows_triple(triple):
            return f"mtriple={triple} is no architecture that LLVM knows"
        if processor and processor not in compat.processors(triple):
            return f"mcpu={processor} is no processor that LLVM knows"
        if compat.lacks_64_bits(target):
            return f"mcpu={processor} has no 64-bit instructions"
    if here and (missing := compat.missing_vectors(target)):
        return f"this processor has no {', '.join(missing)}"
    return ""
