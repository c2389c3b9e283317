# SPDX-License-Identifier: Apache-2.0
"""``python -m topi_ext.emit``: one kernel as an object file, a C source and a header."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from ..about import name_and_version
from ..spec.post_ops import UNARY
from .c_source import header, source
from .request import OPERATORS, Words, read

HERE = Path(__file__).parent
CMAKE, RUNTIME = HERE / "cmake", HERE / "runtime"

PROGRAM = "topi_ext.emit"

_DESCRIPTION = """\
Write one kernel as NAME.o (its code), NAME.h (a function of C) and NAME.c (what connects both).
Programs that use it compile NAME.c and conv_kernels.c of --runtime-dir, and need neither TVM nor
Python. In CMake, add_conv_kernels() and add_conv_kernel() do all of it: see --cmake-dir."""

_EPILOG = f"""\
operators: {", ".join(OPERATORS[:6])};
  and with _weight_grad behind it the gradient of each in its weight, of INPUT, of the gradient of
  the output, and of the other attributes of the operator; WEIGHT is then the shape of the result.

steps of --epilogue, in order: bias and scale (add, multiply by one number for each channel);
  add, subtract, multiply, divide, minimum, maximum, prelu :AXES (an operand that varies along them,
  as in add:NCHW) or :NUMBER; leaky_relu:SLOPE;
  {", ".join(name for name in UNARY if name != "leaky_relu")}.

example:
  python -m topi_ext.emit up conv2d_transpose 1x128x16x16 128x64x4x4 --stride 2 --padding 1 \\
      --epilogue bias relu --packed --out build"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # ends the process
        raise ValueError(f"{message}; see --help")


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = _Parser(
        f"python -m {PROGRAM}",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("name", help="of the function in C")
    add("op", metavar="OPERATOR", help="such as conv2d_transpose")
    add("input", metavar="INPUT", help="shape, such as 1x128x16x16")
    add("weight", metavar="WEIGHT", help="shape, such as 128x64x4x4")
    several = "one integer, or one for each axis: 2,1"
    add("--stride", default="1", help=several)
    add("--padding", default="0", help="as --stride, or both sides, all values before first")
    add("--dilation", default="1", help="as --stride")
    add("--output-padding", default="0", help="as --stride")
    add("--groups", type=int, default=1)
    add("--data-layout", default="", metavar="LAYOUT", help="NCHW or its like if left out")
    add("--kernel-layout", default="", metavar="LAYOUT", help="OIHW; transposed: IOHW")
    add("--out-layout", default="", metavar="LAYOUT", help="as the data")
    add("--dtype", default="float32", help="of the operands")
    add("--out-dtype", default="", metavar="DTYPE", help="of the result; that of the operands")
    add("--epilogue", nargs="+", default=(), metavar="STEP", help="what is done to the result")
    add("--packed", action="store_true", help="take weights that NAME_pack() has packed")
    add("--target", default="", help="JSON of a TVM target, or a processor; else this machine's")
    add("--out", type=Path, default=Path(), metavar="FOLDER", help="where files are written")
    add("--version", action="version", version=name_and_version())
    for option, folder, what in (
        ("--cmake-dir", CMAKE, "what find_package(conv_kernels) finds"),
        ("--runtime-dir", RUNTIME, "conv_kernels.c and its headers"),
    ):
        add(option, action=_Show, const=folder, help=f"print the folder of {what}")
    return made


class _Show(argparse.Action):
    """Print a folder, and end."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: Path, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const, help=help)

    def __call__(self, owner: argparse.ArgumentParser, *_: object) -> None:
        print(self.const)
        owner.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns
    -------
    int
        0, or 2 after one line about what is wrong.
    """
    try:
        given = parser().parse_args(argv)
        words = Words(**{field.name: getattr(given, field.name) for field in fields(Words)})
        _write(words, given.target, given.out)
    except (ValueError, OSError) as error:
        print(f"{PROGRAM}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _write(words: Words, stated: str, folder: Path) -> None:
    request = read(words)
    from .kernel import (
        build,
        target_of,
    )  # TVM is imported only after the checks that do not need it

    target = target_of(stated)
    kernel = build(request, target)
    shown = " ".join(f"{key}={value}" for key, value in target.attrs.items() if key != "keys")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{words.name}.o").write_bytes(kernel.object_file)
    (folder / f"{words.name}.h").write_text(header(request, kernel.packed, shown))
    text = source(request, kernel.packed, copies=kernel.copies)
    (folder / f"{words.name}.c").write_text(text)
