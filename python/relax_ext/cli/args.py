# SPDX-License-Identifier: Apache-2.0
"""The command line: options and help."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Compile a model twice, with stock TVM and with relax_ext, run both, and compare them with
PyTorch (.pt2) or onnxruntime (.onnx): is it right, and how fast is it?

Every different convolution and transposed convolution of the model is also compiled alone and
compared with PyTorch in float64."""

EPILOG = """\
examples:
  python -m relax_ext decoder.pt2                    compare on random inputs
  python -m relax_ext decoder.pt2 --grad             check the gradients too
  python -m relax_ext net.onnx --input x=photo.npy   on an input of your own
  python -m relax_ext net.onnx --dim batch=4         choose a free size
  python -m relax_ext net.onnx --threads 4 --json report.json

how to get a .pt2:
  torch.export.save(torch.export.export(model.eval(), (example_input,)), "decoder.pt2")

exit status:
  0  everything that relax_ext computed is right
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


def parser() -> argparse.ArgumentParser:
    """The argument parser of ``python -m relax_ext``."""
    p = argparse.ArgumentParser(
        prog="python -m relax_ext",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = p.add_argument
    add("model", type=Path, metavar="MODEL", help="an .onnx file or a torch.export .pt2 file")
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
    add("--grad", action="store_true", help="check gradients with torch.autograd too (.pt2 only)")
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
