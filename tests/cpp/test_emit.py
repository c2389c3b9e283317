# SPDX-License-Identifier: Apache-2.0
"""The command ``python -m topi_ext.emit``: what it refuses, in one line, and what it writes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from topi_ext.deploy import elf
from topi_ext.deploy.command import CMAKE, RUNTIME, main
from topi_ext.deploy.request import SHORT
from topi_ext.spec.post_ops import BINARY, UNARY

CONV = "a conv2d 1x3x8x8 4x3x3x3"
RISCV = '{"kind":"llvm","mtriple":"riscv64-linux-gnu"}'
I486 = '{"kind":"llvm","mcpu":"i486"}'
ARM32 = '{"kind":"llvm","mtriple":"armv7l-linux-gnueabihf"}'

REFUSED = {
    "a conv9d 1 1": "operator 'conv9d' must be one of conv1d, conv2d",
    "int conv2d 1x3x8x8 4x3x3x3": "conv2d: name 'int' must be an identifier of C and C++",
    "9 conv2d 1x3x8x8 4x3x3x3": "conv2d: name '9' must be an identifier of C and C++",
    "malloc conv2d 1x3x8x8 4x3x3x3": "conv2d: name 'malloc' must not be that of a function that",
    "omp_x conv2d 1x3x8x8 4x3x3x3": "conv2d: name 'omp_x' must not be that of a function that",
    "conv_a conv2d 1x3x8x8 4x3x3x3": "conv2d: name 'conv_a' must not begin with conv_",
    "a conv2d 1x3x8x8 4x3x3": "conv2d: weight 4x3x3 must have 4 axes, OIHW",
    "a conv2d 1x3x8x8 4x3x3xK": "conv2d: weight '4x3x3xK' must be a shape such as 1x64x32x32",
    "a conv2d 1x3x8x8 4x2x3x3": "conv2d: weight input channels=2 must equal data channels/groups",
    "a conv2d 0x3x8x8 4x3x3x3": "conv2d: batch=0 must be at least 1",
    "a conv2d 1x3x1x1 4x3x3x3": "conv2d: output size=(-1, -1) must be at least 1 on every axis",
    f"{CONV} --stride=0": "conv2d: stride=(0, 0) must be at least 1",
    f"{CONV} --stride=1,2,3": "conv2d: stride=(1, 2, 3) must have 1 or 2 values",
    f"{CONV} --padding=x": "conv2d: padding 'x' must be integers such as 2 or 2,1",
    f"{CONV} --groups=2": "conv2d: groups=2 must divide the channels 3 and 4",
    f"{CONV} --output-padding=1": "conv2d: output_padding=(1,) belongs to transposed",
    f"{CONV} --data-layout=NCHW4c": "conv2d: data_layout='NCHW4c' must be a permutation of 'NCHW'",
    f"{CONV} --dtype=float8": "conv2d: dtype float8 is not supported",
    f"{CONV} --out-dtype=int8": "conv2d: output dtype int8 must be floating point like float32",
    f"{CONV} --epilogue celu": "conv2d: epilogue 'celu' must begin with one of bias, scale",
    f"{CONV} --epilogue add": "conv2d: epilogue 'add' must have a value",
    f"{CONV} --epilogue add:Q": "conv2d: epilogue 'add:Q' must name axes of NCHW, each once",
    f"{CONV} --epilogue add:CC": "conv2d: epilogue 'add:CC' must name axes of NCHW, each once",
    f"{CONV} --epilogue add:nan": "conv2d: epilogue 'add:nan' must end with a finite number",
    f"{CONV} --epilogue divide:0": "conv2d: epilogue 'divide:0' must not divide by zero",
    f"{CONV} --epilogue divide:-0.0": "conv2d: epilogue 'divide:-0.0' must not divide by zero",
    f"{CONV} --epilogue add:1e39": "conv2d: epilogue 'add:1e39' must end with a number that",
    f"{CONV} --epilogue leaky_relu:1e39": "conv2d: epilogue 'leaky_relu:1e39' must end with a",
    f"{CONV} --epilogue relu:2": "conv2d: epilogue 'relu:2' takes no value: relu",
    f"{CONV} --dtype=int8 --epilogue relu": "conv2d: epilogue needs a result of floats",
    f"{CONV} --epilogue {'bias ' * 13}": "conv2d: epilogue must have at most 12 operands",
    "a conv2d_weight_grad 1x3x8x8 4x3x3x3 --packed": "conv2d_weight_grad: packed belongs to",
    "a conv2d_weight_grad 1x3x8x8 4x3x3x3 --epilogue relu": "conv2d_weight_grad: epilogue belongs",
    f"{CONV} --target nosuch": "target 'nosuch' must be JSON, or a processor that LLVM knows",
    f"{CONV} --target pentium": "target pentium: mcpu=pentium has no 64-bit instructions",
    f"{CONV} --target {I486}": f"target {I486}: mcpu=i486 has no 64-bit instructions",
    f"{CONV} --target {{": "target {: Expecting property name",
    f"{CONV} --target {{}}": 'target {}: Field "kind" is not found',
    f'{CONV} --target {{"kind":"cuda","arch":"sm_80"}}': "target kind cuda: kernels in C are for",
    f"{CONV} --target {RISCV}": f"target {RISCV}: Linux links code of mabi lp64d; add",
    f"{CONV} --target {ARM32}": "the target's object files must be ELF of 64 bits, little-endian",
    f"{CONV} --frob": "unrecognized arguments: --frob; see --help",
    "a conv2d 1x3x8x8": "the following arguments are required: WEIGHT; see --help",
    f"{CONV} --groups x": "argument --groups: invalid int value: 'x'; see --help",
}


@pytest.mark.parametrize("line", REFUSED)
def test_refused_in_one_line(line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*line.split(), f"--out={tmp_path}"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"topi_ext.emit: {REFUSED[line]}") and shown.count("\n") == 1, shown
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert main([*CONV.split(), f"--out={tmp_path / 'file'}"]) == 2
    shown = capsys.readouterr().err
    assert "file" in shown and shown.count("\n") == 1


def test_the_command(tmp_path: Path) -> None:
    """The command in a process of its own: help, folders, and three files."""

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "topi_ext.emit", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout

    assert "--epilogue STEP" in run("--help")
    assert run("--cmake-dir").strip() == str(CMAKE)
    assert run(*CONV.split(), "--padding=-1,0,2,1", "--epilogue", "bias", "relu") == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.c", "a.h", "a.o"]
    header = (tmp_path / "a.h").read_text()
    for said in (
        "conv2d, padding -1,0,2,1, then bias, relu",
        "/* data: float32 1x3x8x8, NCHW */\n#define A_DATA_ELEMENTS 192",
        "/* operand0: float32 4, C: add */",
        "#define A_RESULT_ELEMENTS 196",
        "int a(const float* data, const float* weight, const float* operand0, float* result);",
    ):
        assert said in header, header
    assert (RUNTIME / "conv_kernels.c").exists()


def test_no_temporary_folder_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM ends the process where it is full."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert main([*CONV.split(), f"--out={tmp_path}"]) == 0
    assert (tmp_path / "a.o").read_bytes()[:4] == b"\x7fELF"


def test_help_names_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for step in (*SHORT, *BINARY, *UNARY):
        assert re.search(rf"\b{step}\b", shown), step


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"tvm-conv-ext \d+\.\d+\.\d+\n", capsys.readouterr().out)


WAITING = """
import runpy, time
from topi_ext.deploy import command
command.main = lambda: (print("here", flush=True), time.sleep(60))
runpy.run_module("topi_ext.emit", run_name="__main__")
"""


def test_interrupted() -> None:
    """One line, at once."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell has what runs in its background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout and process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "topi_ext.emit: interrupted\n")
    assert process.returncode == 130


def test_names_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="ELF of 64 bits"):
        elf.isolated(b"MZ" + bytes(100), {})
