# SPDX-License-Identifier: Apache-2.0
"""The options and help of the command line, and the errors that need no TVM."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from topi_ext.about import name_and_version
from topi_ext.processors import usable

from . import files
from .errors import CliError
from .usage import Usage

DESCRIPTION = """\
Import and compile a model twice, with stock TVM and with {package}, run both, and compare results
and times with the model's own framework.  Frameworks are {frameworks}.

Every different convolution and transposed convolution of the model is also compiled alone and
compared with PyTorch in float64."""

EPILOG = """\
examples:
{examples}

{origin}

{tuning}  {program} cache [--clear]
      shows the folder and the size of the cache of compiled code; or clears it

  {program} doctor
      prints versions, processor, vector instructions, threads, and what is registered

{kernels}security:
  TVM and the model's own framework load and run MODEL. Take only files that you trust.

exit status:
  0  all results of {package} are correct
  1  a result is incorrect (the table shows which)
  2  the command line, the file or the inputs cannot be used
  3  the output cannot be written; 141: its reader has ended

error, as printed: max |result - reference| / max |reference|. A float32 operator is correct below
1e-5, a whole model below 1e-4 (float64 1e-12 and 1e-10, float16 2e-3 and 2e-2, bfloat16 1.6e-2
and 8e-2), quantized outputs up to a step of rounding, more where operators are chained;
--tolerance multiplies these."""

TUNING = """\
  {program} tune MODEL --database PLANS.json
      measures plans of its convolutions on this machine, and stores the fastest of each

"""

KERNELS = """\
  {program} doctor MODEL
      prints which kernel computes each operator of a model, by which plan

"""

EXAMPLE = 32  # columns of the arguments of an example
LARGEST_SIZE = 2**63 - 1
LARGEST_PORT = 2**16 - 1
LARGEST_SEED = 2**63 - 2  # gradients draw with the next one too
THREADS_PER_CORE = 8  # more gain nothing, and very many crash TVM


def _named(text: str) -> tuple[str, str]:
    name, sep, value = text.partition("=")
    if not (name and sep and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _whole(text: str, least: int, most: int) -> int | None:
    """Return the number that a text is, or None."""
    digits = text.isascii() and text.isdigit() and len(text) < 20
    return int(text) if digits and least <= int(text) <= most else None


def _size(text: str) -> tuple[str, int]:
    name, value = _named(text)
    size = _whole(value, 1, LARGEST_SIZE)
    if size is None:
        raise argparse.ArgumentTypeError(f"{text!r}: the size must be a positive 64-bit integer")
    return name, size


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, value = _named(text)
    sizes = [_whole(size, 1, LARGEST_SIZE) for size in value.split(",")]
    known = tuple(size for size in sizes if size is not None)
    if len(known) < len(sizes):
        raise argparse.ArgumentTypeError(
            f"{text!r}: sizes must be positive 64-bit integers, as in 1,3,8,8"
        )
    return name, known


def _positive(text: str) -> int:
    value = _whole(text, 1, LARGEST_SIZE)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive 64-bit integer")
    return value


def _address(text: str) -> tuple[str, int]:
    host, sep, digits = text.rpartition(":")
    port = _whole(digits, 1, LARGEST_PORT)
    if not (host and sep) or port is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form HOST:PORT")
    return host.strip("[]"), port


def _seed(text: str) -> int:
    value = _whole(text, 0, LARGEST_SEED)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0 to {LARGEST_SEED}")
    return value


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number >= 0")
    return value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print a one-line error without the usage."""
        raise CliError(message)


def parser(usage: Usage, program: str) -> argparse.ArgumentParser:
    """Return the argument parser of a program, e.g. ``"python -m relax_ext"``."""
    p = _Parser(
        prog=program,
        description=DESCRIPTION.format(package=usage.package, frameworks=usage.frameworks),
        epilog=EPILOG.format(
            package=usage.package,
            program=program,
            examples="\n".join(_example(program, *words) for words in usage.examples),
            origin=usage.origin,
            tuning=TUNING.format(program=program) if "database" in usage.takes else "",
            kernels=KERNELS.format(program=program) if "profile" in usage.takes else "",
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.set_defaults(output=[], profile=False, database=None, rpc=None, key=[], cc=None)
    add = p.add_argument
    add("model", type=Path, metavar="MODEL", help=f"a {files.listed(usage.extensions)} file")
    add(
        "--input",
        type=_named,
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="use this array as the input NAME (repeatable; other inputs are random)",
    )
    add(
        "--dim",
        type=_size,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="value of a free size of an .onnx model (repeatable)",
    )
    add(
        "--shape",
        type=_shape,
        action="append",
        default=[],
        metavar="NAME=N,C,H,W",
        help="shape of an input that the file does not state, or not all of (repeatable)",
    )
    if "output" in usage.takes:
        add(
            "--output",
            action="append",
            default=[],
            metavar="NAME",
            help="output of a .pb graph (repeatable; default: every node that no other reads)",
        )
    add("--grad", action="store_true", help=usage.gradients)
    if "profile" in usage.takes:
        add(
            "--profile",
            action="store_true",
            help=f"compile by {usage.package}.pipeline alone, and show which operators take the "
            "time, instead of comparing",
        )
    if "database" in usage.takes:
        add(
            "--database",
            type=Path,
            metavar="PLANS.json",
            help="take plans that `tune` measured from this file, or write them to it",
        )
    add(
        "--target",
        action="append",
        default=[],
        metavar="TARGET",
        help='TVM target, a kind or a JSON dict such as \'{"kind": "llvm", "mcpu": "znver3"}\' '
        "(default: this machine)",
    )
    if "rpc" in usage.takes:
        _add_boards(add)
    add("--threads", type=_positive, metavar="N", help="threads (default: all cores)")
    add(
        "--repeat",
        type=_positive,
        default=10,
        metavar="N",
        help="timed runs; the best is printed (default: %(default)s)",
    )
    add(
        "--budget",
        type=_factor,
        default=2.0,
        metavar="SECONDS",
        help="stop repeating after this long, per measurement (default: %(default)s)",
    )
    add("--seed", type=_seed, default=0, metavar="N", help="seed of the random data")
    add(
        "--tolerance",
        type=_factor,
        default=1.0,
        metavar="FACTOR",
        help="multiply the tolerances below (default: %(default)s)",
    )
    add("--json", type=Path, metavar="OUT", help="write the results to this file too")
    add("--version", action="version", version=name_and_version())
    return p


def _example(program: str, arguments: str, words: str) -> str:
    """Return a command and what it does, beside it if there is room."""
    command, width = f"{program} {arguments}", len(program) + EXAMPLE
    if words and len(command) >= width:
        return f"  {command}\n  {'':{width}}{words}"
    return f"  {command:{width}}{words}".rstrip()


def _add_boards(add: Any) -> None:
    """The options of boards behind a tracker."""
    add(
        "--rpc",
        type=_address,
        metavar="HOST:PORT",
        help="compile here, run and time on a board behind this RPC tracker of TVM",
    )
    add(
        "--key",
        action="append",
        default=[],
        metavar="KEY",
        help="kind of board, as its servers were registered",
    )
    add(
        "--cc",
        metavar="COMPILER",
        help="what links libraries for the board (default: by --target's mtriple)",
    )
    add(
        "--rpc-timeout",
        type=_positive,
        default=60,
        metavar="SECONDS",
        help="wait so long for a free board, and as long for one function on it "
        "(default: %(default)s)",
    )


def read(usage: Usage, argv: Sequence[str], program: str) -> argparse.Namespace:
    """Return the choices of the command line: ``command``, empty for a comparison; of a command for
    a model, ``dim``, ``shape`` and ``input`` by name, inputs as arrays.

    Raises
    ------
    CliError
        Whatever of it can be refused without TVM and the model's framework.
    """
    command, *rest = argv or [""]
    if command == "cache":
        if rest not in ([], ["--clear"]):
            raise CliError(f"cache {' '.join(rest)}: takes nothing but --clear")
        return argparse.Namespace(command=command, clear=bool(rest))
    if [command, *rest] == ["doctor"]:
        return argparse.Namespace(command=command)
    known = {"doctor": "kernels", **({"tune": "tune"} if "database" in usage.takes else {})}
    chosen = parser(usage, program).parse_args(rest if command in known else argv)
    chosen.command = known.get(command, "profile" if chosen.profile else "")
    _check_model(chosen, usage)
    return chosen


def _check_model(chosen: argparse.Namespace, usage: Usage) -> None:
    """Raise if choices about a model do not go together or name no proper files."""
    chosen.dim = _by_name("--dim", chosen.dim)
    chosen.shape = _by_name("--shape", chosen.shape)
    paths = _by_name("--input", chosen.input)
    chosen.board_threads = chosen.threads
    chosen.threads = threads_of(chosen.threads)
    _check_board(chosen)
    if chosen.profile and (chosen.grad or chosen.rpc):
        raise CliError(f"--profile: not with --{'grad' if chosen.grad else 'rpc'}")
    _check_database(chosen)
    if chosen.json is not None:
        files.check_output("--json", chosen.json)
    files.check_model(chosen.model, usage.extensions)
    if chosen.output and chosen.model.suffix.lower() != ".pb":
        raise CliError("--output is for .pb graphs; other files state their outputs")
    chosen.input = {name: files.read_array(name, file) for name, file in paths.items()}
    for name in chosen.shape:
        if name in chosen.input:
            raise CliError(f"--shape {name}: --input {name} has a shape")
    if chosen.command == "kernels" and "profile" not in usage.takes:
        raise CliError(f"doctor MODEL: {usage.package} does not tell which kernels it has chosen")


def _check_board(chosen: argparse.Namespace) -> None:
    """Raise if the options of a board do not go together; replace lists by their only element."""
    for option in ("target", "key"):
        given = getattr(chosen, option)
        if len(given) > 1:
            raise CliError(f"--{option}: given more often than once")
        setattr(chosen, option, given[0] if given else None)
    if not chosen.rpc:
        for option in ("key", "cc"):
            if getattr(chosen, option):
                raise CliError(f"--{option}: is for boards behind --rpc HOST:PORT")
        return
    if not chosen.key:
        raise CliError("--rpc: say which kind of board by --key KEY")
    if not chosen.target:
        raise CliError("--rpc: say by --target what the board is")
    if chosen.cc and not shutil.which(chosen.cc):
        raise CliError(f"--cc {chosen.cc}: no such program")


def _check_database(chosen: argparse.Namespace) -> None:
    """Raise if a file of plans cannot be read, or cannot be written by `tune`."""
    if chosen.command == "tune":
        if chosen.database is None:
            raise CliError("tune: say by --database PLANS.json which file takes the plans")
        for option in ("grad", "profile"):
            if getattr(chosen, option):
                raise CliError(f"--{option}: not with tune")
        files.check_output("--database", chosen.database)
    elif chosen.database is not None and not chosen.database.is_file():
        what = "a folder" if chosen.database.is_dir() else "no such file"
        raise CliError(f"--database {chosen.database}: {what}")


def _by_name(option: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise CliError(f"{option} {name}: given twice")
        found[name] = value
    return found


def threads_of(wanted: int | None) -> int:
    """Return the number of threads: as wanted, as TVM_NUM_THREADS says, or all usable cores.

    Raises
    ------
    CliError
        TVM_NUM_THREADS is no such number, or the threads are so many that starting them fails.
    """
    cores = os.cpu_count() or 1
    given = os.environ.get("TVM_NUM_THREADS")
    said = f"TVM_NUM_THREADS={given}" if wanted is None else f"--threads {wanted}"
    if wanted is None and given is not None:
        wanted = _whole(given, 1, LARGEST_SIZE)
        if wanted is None:
            raise CliError(f"{said}: not a positive integer")
    if wanted is not None and wanted > THREADS_PER_CORE * cores:
        raise CliError(f"{said}: more than {THREADS_PER_CORE} for each of {cores} processors")
    return wanted or usable()
