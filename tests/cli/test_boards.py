# SPDX-License-Identifier: Apache-2.0
"""The command line on boards behind TVM's RPC tracker: this machine, twice.

Whatever a server does, there is one line and an end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("tornado", reason="TVM's RPC tracker needs it")
torch = pytest.importorskip("torch")

import tvm  # noqa: E402 (after what may be missing)

from helpers import rpc  # noqa: E402
from topi_ext import compat  # noqa: E402
from topi_ext.kernel.database import read  # noqa: E402
from topi_ext.tuning import rpc as boards  # noqa: E402
from topi_ext.tuning.rpc import Board, BoardError  # noqa: E402

PLAIN = '{"kind": "llvm", "mcpu": "generic"}'
LIMIT = 120
"""Seconds after which a test says that something hangs, on a machine however busy."""


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rpc.Service]:
    with rpc.tracker(tmp_path_factory.mktemp("tracker")) as service:
        yield service


@pytest.fixture(scope="module")
def servers(tracker: rpc.Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list]:
    """Two, under one key each: "left" and "right"."""
    directory = tmp_path_factory.mktemp("servers")
    with rpc.server(directory, "left", tracker.port) as left:
        with rpc.server(directory, "right", tracker.port) as right:
            wait_until_known(tracker, "left")
            wait_until_known(tracker, "right")
            yield [left, right]


def wait_until_known(tracker: rpc.Service, key: str) -> None:
    """Until a server has told the tracker of itself, after it has bound its port."""
    until = time.monotonic() + rpc.SECONDS
    while True:
        try:
            return board(tracker, key).connect().close()
        except BoardError:
            assert time.monotonic() < until
            time.sleep(0.2)


def board(tracker: rpc.Service, key: str, timeout: float = 30) -> Board:
    return Board("127.0.0.1", tracker.port, key, timeout=timeout)


def save(path: Path, channels: int, size: int) -> Path:
    layer = torch.nn.ConvTranspose2d(channels, channels, 4, stride=2, padding=1).eval()
    example = (torch.randn(1, channels, size, size),)
    torch.export.save(torch.export.export(layer, example), path)
    return path


def start(
    tracker: rpc.Service, model: Path, *arguments: str, command: Sequence[str] = ()
) -> subprocess.Popen:
    """``python -m relax_ext [COMMAND] MODEL``, in a session of its own."""
    command = [sys.executable, "-m", "relax_ext", *command, str(model)]
    command += ["--rpc", f"127.0.0.1:{tracker.port}", *arguments]
    paths = str(Path(__file__).parents[2] / "python")
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end_of(process: subprocess.Popen) -> tuple[int, str, list[str]]:
    """Status, output, and lines of standard error without warnings; nothing of it may be left."""
    try:
        output, errors = process.communicate(timeout=LIMIT)
        until = time.monotonic() + 10  # Python's own resource tracker ends a moment later
        while left := rpc.processes_of_session(process.pid):
            assert time.monotonic() < until, f"left behind: {left}"
            time.sleep(0.05)
    finally:
        for pid in rpc.processes_of_session(process.pid):
            os.kill(pid, signal.SIGKILL)
    said = [line for line in errors.splitlines() if line.startswith("relax_ext:")]
    assert "Traceback" not in errors, errors
    return process.returncode, output, said


def test_a_board(tracker: rpc.Service, servers: list, tmp_path: Path) -> None:
    """Its results are right by PyTorch, and timed there."""
    model, report = save(tmp_path / "layer.pt2", 4, 5), tmp_path / "report.json"
    arguments = ["--key", "left", "--target", PLAIN]
    status, output, said = end_of(
        start(tracker, model, *arguments, "--repeat", "2", "--json", str(report))
    )
    assert (status, said) == (0, []), output
    found = json.loads(report.read_text())
    assert found["board"].startswith("left ")
    # As many threads as the server has, not as this machine has cores.
    assert found["target"] == "llvm mcpu=generic num-cores=1"
    rows = [*found["operators"], found["whole"], found["pipeline"]]
    assert [row["wrong"] for row in rows] == [False] * 3
    for row in rows:
        assert 0 < row["ours"]["ms"] < 1e3 and row["ours"]["error"] < 1e-5
    # Three functions of ours, and two of stock.
    assert servers[0].log.read_text().count("load_module") == 5


def test_plans_are_measured_on_a_board(tracker: rpc.Service, servers: list, tmp_path: Path) -> None:
    """Built here and run there; the board's threads are part of the machine's name, and what is
    compiled for the board takes them."""
    model, database = save(tmp_path / "layer.pt2", 4, 5), tmp_path / "plans.json"
    arguments = ["--key", "left", "--target", PLAIN, "--database", str(database)]
    before = servers[0].log.read_text().count("load_module")
    status, output, said = end_of(start(tracker, model, *arguments, command=["tune"]))
    assert status == 0, output
    assert "tune: 1 of 1" in output and said == []
    assert servers[0].log.read_text().count("load_module") == before + 1
    ((machine, entries),) = read(database).items()
    assert machine.startswith("processor=generic ") and " threads=1" in machine
    assert all(entry["ms"] <= entry["estimate_ms"] for entry in entries.values())
    status, output, said = end_of(start(tracker, model, *arguments, "--repeat", "2"))
    assert (status, said) == (0, []), output
    assert "all 3 correct" in output


def test_plans_of_a_board_that_is_not_there(tracker: rpc.Service, servers: list) -> None:
    """One line, before anything is built."""
    from relax_ext import tune

    module, target = tvm.IRModule({}), tvm.target.Target({"kind": "llvm", "mcpu": "generic"})
    with pytest.raises(BoardError, match="--key centre: not at "):
        tune(module, target, board=board(tracker, "centre"))
    arm = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    with pytest.raises(BoardError, match="--target is for aarch64-linux-gnu"):
        tune(module, arm, board=board(tracker, "left"))
    board(tracker, "left").connect().close()


def test_a_server_that_is_killed_in_the_middle(tracker: rpc.Service, tmp_path: Path) -> None:
    """Stock's convolution takes minutes there; its server is killed a moment after the library has
    come."""
    model = save(tmp_path / "large.pt2", 64, 32)
    with rpc.server(tmp_path, "victim", tracker.port) as victim:
        wait_until_known(tracker, "victim")
        arguments = ["--key", "victim", "--target", PLAIN, "--repeat", "1000", "--budget", "600"]
        process = start(tracker, model, *arguments)
        victim.says("load_module")
        time.sleep(0.5)
        victim.signal(signal.SIGKILL)
        killed = time.monotonic()
        status, output, said = end_of(process)
        assert time.monotonic() - killed < 20
    (line,) = said
    assert (status, output) == (2, "")
    assert line.startswith(f"relax_ext: --key victim: the server at 127.0.0.1:{victim.port} died")
    assert line.endswith("--target has instructions that its processor lacks")


def test_a_server_that_is_killed_between_two_sessions(tracker: rpc.Service, tmp_path: Path) -> None:
    """While the next function is compiled here, the tracker forgets its key."""
    with rpc.server(tmp_path, "leaver", tracker.port) as leaver:
        wait_until_known(tracker, "leaver")
        leaver.signal(signal.SIGKILL)
    until = time.monotonic() + rpc.SECONDS
    while True:
        with pytest.raises(BoardError) as error:
            board(tracker, "leaver", timeout=1).connect()
        if "no free server" not in str(error.value) or time.monotonic() > until:
            break
    assert str(error.value) == (
        f"--key leaver: its server at 127.0.0.1:{tracker.port} has ended since the last session: "
        "killed, or out of memory"
    )


@pytest.mark.parametrize(
    ("number", "ends"),
    [
        (signal.SIGINT, (130, "", ["relax_ext: interrupted"])),
        (signal.SIGTERM, (143, "", ["relax_ext: terminated"])),
    ],
    ids=["interrupted", "terminated"],
)
def test_a_run_that_is_ended_gives_its_board_back(
    number: int, ends: tuple, tracker: rpc.Service, servers: list, tmp_path: Path
) -> None:
    """TVM's server would die with a client that vanishes while it works. `end_of` looks who is
    left."""
    left, _ = servers
    before = left.log.read_text().count("load_module")
    arguments = ["--key", "left", "--target", PLAIN, "--repeat", "1000", "--budget", "600"]
    process = start(tracker, save(tmp_path / "layer.pt2", 4, 5), *arguments)
    left.says("load_module", before + 1)
    os.killpg(process.pid, number)  # as a terminal does
    assert end_of(process) == ends
    board(tracker, "left").connect().close()


def test_an_interrupt_while_a_session_begins(
    tracker: rpc.Service, servers: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has accepted, and this process does not know its sockets yet."""
    left, _ = servers
    ended = left.log.read_text().count("finish serving")
    connect, accepted, interrupted = tvm.rpc.connect, threading.Event(), threading.Event()

    def slowly(*arguments: object, **options: object) -> object:
        remote = connect(*arguments, **options)
        accepted.set()
        interrupted.wait(LIMIT)
        return remote

    monkeypatch.setattr(tvm.rpc, "connect", slowly)
    monkeypatch.setattr(boards, "_leaving", threading.Event())
    with ThreadPoolExecutor(2) as pool:
        session = pool.submit(board(tracker, "left", timeout=10 * LIMIT).connect)
        assert accepted.wait(LIMIT)
        leaving = pool.submit(boards.hang_up)
        time.sleep(0.2)
        interrupted.set()
        leaving.result()
        left.says("finish serving", ended + 1)
        session.result().close()


def test_what_is_refused_before_anything_is_compiled(tracker: rpc.Service, servers: list) -> None:
    left, right = servers

    def refusal(of: Board, target: str | dict = "llvm") -> str:
        with pytest.raises(BoardError) as refused, closing(of.connect()) as session:
            session.check_target(tvm.target.Target(target))
        return str(refused.value)

    who = f"--key left: the server at 127.0.0.1:{left.port}"
    assert refusal(Board("127.0.0.1", 9, "left")) == (
        "--rpc 127.0.0.1:9: no tracker: Connection refused"
    )
    # A server is no tracker. It forgets its place at the real one over it, for a moment.
    assert "no TVM tracker answers there" in refusal(Board("127.0.0.1", right.port, "left"))
    assert refusal(board(tracker, "middle")).startswith(
        f"--key middle: not at 127.0.0.1:{tracker.port}, whose keys are: left"
    )
    arm = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}
    assert refusal(board(tracker, "left"), arm).endswith("--target is for aarch64-linux-gnu")
    assert refusal(board(tracker, "left"), "opencl") == f"{who} has no device opencl"
    with closing(board(tracker, "left").connect()):
        assert refusal(board(tracker, "left", timeout=0.5)) == (
            "--key left: no free server within 0.5 s (--rpc-timeout)"
        )


def test_a_board_is_free_again_where_a_session_fails_to_begin(
    tracker: rpc.Service, servers: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> None:
        raise BoardError("no answer")

    of = Board("127.0.0.1", tracker.port, "left", timeout=5, threads=2)
    with monkeypatch.context() as patched:
        patched.setattr(boards.Session, "_ask", ask)
        with pytest.raises(BoardError, match="no answer"):
            of.connect()
    board(tracker, "left", timeout=5).connect().close()


def test_a_server_that_is_silent(
    tracker: rpc.Service, servers: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, as where the network is gone: the end comes in time."""
    monkeypatch.setattr(boards, "GRACE", 0.0)
    left, _ = servers
    session = board(tracker, "left", timeout=1).connect()
    left.signal(signal.SIGSTOP)
    try:
        with pytest.raises(BoardError, match=r"was not done within 1 s while it did nothing"):
            with session.doing("did nothing"):
                session.remote.get_function("runtime.NumThreads")()
    finally:
        left.signal(signal.SIGCONT)
        session.close()


def test_instructions_that_the_board_lacks(
    tracker: rpc.Service, servers: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor without AVX, as a server would tell of it."""
    ask = boards.Session._ask
    has = {"ffi.MapCount": 1, "ffi.MapGetItem": 0}

    def without_avx(self: boards.Session, name: str, *arguments: object) -> object:
        return has[name] if name in has else ask(self, name, *arguments)

    monkeypatch.setattr(boards.Session, "_ask", without_avx)
    with closing(board(tracker, "right").connect()) as session:
        with pytest.raises(BoardError, match=r"has no avx, avx2, f16c, fma, which --target uses"):
            session.check_target(tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}))


def test_a_library_that_the_board_does_not_take(
    tracker: rpc.Service, servers: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written where there is no folder, as where there is no room. The board is free again."""
    from tvm import relax

    from relax_ext.cli.adapter import RelaxAdapter

    upload = tvm.rpc.RPCSession.upload
    monkeypatch.setattr(
        tvm.rpc.RPCSession, "upload", lambda self, data: upload(self, data, "missing/model.so")
    )
    left = board(tracker, "left", timeout=10)
    adapter = RelaxAdapter().on(left)
    bb = relax.BlockBuilder()
    x = relax.Var("x", compat.tensor_type((2,), "float32", 1))
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(relax.op.add(x, x)))
    with pytest.raises(BoardError, match=r"does not take a library of \d+\.\d MB: "):
        adapter.compile(bb.get(), tvm.target.Target("llvm"), "main")
    left.connect().close()


def test_another_tvm() -> None:
    """The errors of TVM 0.17's server and of another protocol both suggest to install the same
    release."""
    for said in (
        "Check failed: size <= pending_request_bytes_ (8 vs. 0) :",
        "RPCServer: Client protocol version mismatch with the server",
    ):
        assert boards._refusal(RuntimeError(said)).endswith("here: install the same")
    assert (
        boards._refusal(RuntimeError("key mismatch"))
        == "takes no session: RuntimeError: key mismatch"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--key", "left"], "--key: is for boards behind --rpc HOST:PORT"),
        (["--rpc", "localhost:1", "--target", "llvm"], "--rpc: say which kind of board"),
        (["--rpc", "localhost:1", "--key", "a"], "--rpc: say by --target what the board is"),
        (["--rpc", "localhost:1", "--key", "a", "--key", "b"], "--key: given more often than once"),
        (["--rpc", "localhost"], "'localhost' is not of the form HOST:PORT"),
        (["--rpc", "localhost:70000"], "'localhost:70000' is not of the form HOST:PORT"),
        (["--target", "llvm", "--target", "llvm"], "--target: given more often than once"),
        (
            ["--rpc", "localhost:1", "--key", "a", "--target", "llvm", "--cc", "no-such-cc"],
            "--cc no-such-cc: no such program",
        ),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], said: str) -> None:
    from conv_cli import args
    from conv_cli.errors import CliError
    from conv_cli.usage import RELAX

    with pytest.raises(CliError) as refused:
        args.read(RELAX, ["layer.pt2", *arguments], "tvm-conv")
    assert said in str(refused.value)


def test_libraries_are_linked_for_the_board(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the linker that the triple names, without its vendor too."""
    here = Board("localhost", 1, "a")
    triple = {"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu"}
    target = tvm.target.Target(triple)
    monkeypatch.setattr(boards.shutil, "which", {"aarch64-linux-gnu-gcc": "found"}.get)
    assert boards.linker(here, target) == "aarch64-linux-gnu-gcc"
    monkeypatch.setattr(boards.shutil, "which", lambda name: None)
    with pytest.raises(BoardError, match=r"install aarch64-unknown-linux-gnu-g\+\+, or say --cc"):
        boards.linker(here, target)
    assert boards.linker(Board("localhost", 1, "a", compiler="cc"), target) == "cc"
    assert boards.linker(here, tvm.target.Target("llvm")) is None
