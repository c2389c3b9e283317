# SPDX-License-Identifier: Apache-2.0
"""The command line: options and help."""

from __future__ import annotations

import argparse
from pathlib import Path

from topi_ext.cli.door import Door

DESCRIPTION = """\
Compile a model twice, with stock TVM and with {package}, run both, and compare them with
PyTorch or onnxruntime: is it right, and how fast is it?

Every different convolution and transposed convolution of the model is also compiled alone and
compared with PyTorch in float64."""

EPILOG = """\
{examples}

  python -m {package} doctor
      prints versions, processor, vector instructions, threads, and what is registered

exit status:
  0  everything that {package} computed is right
  1  something is wrong (the table says what)
  2  the command line, the file or the inputs cannot be used

error, as printed: max |result - reference| / max |reference|. A float32 operator is right below
1e-5, a whole model below 1e-4 (float64 1e-12 and 1e-10, float16 2e-3 and 2e-2, bfloat16 1.6e-2
and 8e-2); --tolerance multiplies these."""


def _named(text: str) -> tuple[str, str]:
    name, sep, value = text.partition("=")
    if not (name and sep and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _size(text: str) -> tuple[str, int]:
    name, value = _named(text)
    if not value.isdigit() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: the size must be a positive integer")
    return name, int(value)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, value = _named(text)
    sizes = value.split(",")
    if not all(size.isdigit() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(
            f"{text!r}: sizes must be positive integers, as in 1,3,8,8"
        )
    return name, tuple(map(int, sizes))


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number >= 0")
    return value


def parser(door: Door) -> argparse.ArgumentParser:
    """The argument parser of ``python -m PACKAGE``."""
    files = " or ".join(door.loaders)
    p = argparse.ArgumentParser(
        prog=f"python -m {door.package}",
        description=DESCRIPTION.format(package=door.package),
        epilog=EPILOG.format(package=door.package, examples=door.examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = p.add_argument
    add("model", type=Path, metavar="MODEL", help=f"a {files} file")
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
    if door.takes_shapes:
        add(
            "--shape",
            type=_shape,
            action="append",
            default=[],
            metavar="NAME=N,C,H,W",
            help="shape of an input that the file does not state (repeatable)",
        )
    add("--grad", action="store_true", help=door.gradients)
    add(
        "--target",
        metavar="TARGET",
        help='TVM target, a kind or a JSON dict such as \'{"kind": "llvm", "mcpu": "znver3"}\' '
        "(default: this machine)",
    )
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
    add("--seed", type=int, default=0, metavar="N", help="seed of the random data")
    add(
        "--tolerance",
        type=_factor,
        default=1.0,
        metavar="FACTOR",
        help="multiply the tolerances below (default: %(default)s)",
    )
    add("--json", type=Path, metavar="OUT", help="write the results to this file too")
    return p
