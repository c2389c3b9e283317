# SPDX-License-Identifier: Apache-2.0
"""Boards behind TVM's RPC tracker: requested, watched while they work, released.

A *key* names a kind of board; servers under one key are alike, and the tracker gives whichever is
free. Whatever a board or the network does, nothing here waits longer than it was told to.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..notices import one_line

GRACE = 5.0
"""Seconds that a server has beyond a session's own limit to say that it is over."""
PATIENCE = 5.0
"""Seconds that an interrupted process waits for servers to take a session or to finish what they
run."""

_open: list[Session] = []
_met: set[str] = set()
"""Boards with which this process has had a session."""
_leaving = threading.Event()


class BoardError(RuntimeError):
    """A tracker, a board or a linker fails; one line, which names the option of the command."""


@dataclass(frozen=True)
class Board:
    """A kind of board.

    Attributes
    ----------
    host : str
    port : int
        Port of the tracker.
    key : str
        Key under which its servers are registered.
    compiler : str or None
        Command that links libraries for it, e.g. ``aarch64-linux-gnu-g++``; chosen by the target's
        triple unless given.
    timeout : float
        Seconds to wait for a free board, and the most that one compiled function has there.
    threads : int or None
        Threads on the board; as its server was started unless given.
    """

    host: str
    port: int
    key: str
    compiler: str | None = None
    timeout: float = 60.0
    threads: int | None = None

    @property
    def tracker(self) -> str:
        """``HOST:PORT``, as given."""
        return f"{self.host}:{self.port}"

    @property
    def shown(self) -> str:
        """Return the name for reports."""
        return f"{self.key} ({self.tracker})"

    def connect(self) -> Session:
        """Return a session with a free server under the key.

        Raises
        ------
        BoardError
            For no tracker, an unknown key, no free board in time, or another TVM.
        """
        until = time.monotonic() + self.timeout
        with _Tracker(self) as tracker:
            known = tracker.keys()
            if self.key not in known:
                if self.shown in _met:
                    raise BoardError(
                        f"--key {self.key}: its server at {self.tracker} has ended since the last "
                        "session: killed, or out of memory"
                    )
                others = ", ".join(known) or "none"
                raise BoardError(
                    f"--key {self.key}: not at {self.tracker}, whose keys are: {others}"
                )
            host, port, match = tracker.request(until)
        _met.add(self.shown)
        return Session(self, (host, port), match)


class _Tracker:
    """A connection with the tracker, by the messages of ``tvm.rpc.base``.

    TVM's own client waits for a free board without end, and for a minute for a tracker.
    """

    def __init__(self, board: Board) -> None:
        from tvm.rpc import base

        self._board, self._base = board, base
        try:
            self._socket = socket.create_connection((board.host, board.port), board.timeout)
        except OSError as error:
            reason = error.strerror or one_line(error)
            raise BoardError(f"--rpc {board.tracker}: no tracker: {reason}") from error

    def __enter__(self) -> _Tracker:
        magic = struct.pack("<i", self._base.RPC_TRACKER_MAGIC)
        try:
            self._socket.sendall(magic)
            answer = self._base.recvall(self._socket, len(magic))
        except OSError:
            answer = b""
        if answer != magic:
            self._socket.close()
            raise BoardError(f"--rpc {self._board.tracker}: no TVM tracker answers there")
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def keys(self) -> list[str]:
        """Return the keys under which servers are registered, free or not."""
        found = self._ask(self._base.TrackerCode.SUMMARY)["server_info"]
        return sorted({str(server["key"]).partition(":")[2] for server in found})

    def request(self, until: float) -> tuple[str, int, str]:
        """Address of a free server, and the key that opens it once."""
        self._socket.settimeout(max(until - time.monotonic(), 0.1))
        host, port, match = self._ask(self._base.TrackerCode.REQUEST, self._board.key, "", 1)
        return host, int(port), match

    def _ask(self, code: int, *arguments: Any) -> Any:
        board = self._board
        try:
            self._base.sendjson(self._socket, [code, *arguments])
            status, *value = self._base.recvjson(self._socket)
        except TimeoutError:
            if code != self._base.TrackerCode.REQUEST:
                raise BoardError(f"--rpc {board.tracker}: the tracker does not answer") from None
            raise BoardError(
                f"--key {board.key}: no free server within {board.timeout:g} s (--rpc-timeout)"
            ) from None
        except (OSError, ValueError) as error:
            raise BoardError(
                f"--rpc {board.tracker}: the tracker went away: {one_line(error)}"
            ) from error
        if status != self._base.TrackerCode.SUCCESS:
            raise BoardError(f"--rpc {board.tracker}: the tracker refused: {value}")
        return value[0]


class Session:
    """A session with one server, its only one until :meth:`close`.

    Attributes
    ----------
    board : Board
    address : str
        ``HOST:PORT`` of the server.
    remote : tvm.rpc.RPCSession
    """

    def __init__(self, board: Board, address: tuple[str, int], match: str) -> None:
        from tvm import rpc

        self.board, self.address = board, "{}:{}".format(*address)
        self._sockets: list[socket.socket] = []
        self._begun = threading.Event()
        _open.append(self)  # first, because a server also dies with a client that vanishes here
        if _leaving.is_set():
            threading.Event().wait()  # for the end of this process
        seconds = board.timeout
        try:
            self.remote = self._connected(
                lambda: rpc.connect(*address, match, session_timeout=seconds), seconds
            )
            # TVM's client itself waits for ever.
            limit = struct.pack("ll", int(seconds + GRACE), int((seconds + GRACE) % 1 * 1e6))
            for connection in self._sockets:
                for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    connection.setsockopt(socket.SOL_SOCKET, option, limit)
            if board.threads:
                self._ask("runtime.config_threadpool", 0, board.threads)
        except BaseException:
            self.close()  # otherwise the server would wait for this process
            raise

    def _connected(self, connect: Callable[[], Any], seconds: float) -> Any:
        """Call ``connect()`` with a time limit, which TVM does not support; keep its sockets."""
        found: list[Any] = []
        before = _sockets()

        def run() -> None:
            try:
                remote = connect()
                self._sockets += (socket.socket(fileno=os.dup(fd)) for fd in _sockets() - before)
                found.append(remote)
            except Exception as error:
                found.append(error)
            finally:
                self._begun.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(seconds)
        who = f"--key {self.board.key}: the server at {self.address}"
        if not found:
            raise BoardError(
                f"{who} cannot be reached within {seconds:g} s: is it behind a router?"
            )
        if isinstance(found[0], Exception):
            raise BoardError(f"{who} {_refusal(found[0])}") from found[0]
        return found[0]

    def close(self) -> None:
        """End the session; whatever still refers to arrays there is of no use any more."""
        if self in _open:
            _open.remove(self)
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Report an end of the connection inside the block as a one-line error; other errors pass.

        Raises
        ------
        BoardError
            The server died, or was silent for too long.
        """
        start = time.monotonic()
        try:
            yield
        except BoardError:
            raise
        except Exception as error:
            if _leaving.is_set():
                threading.Event().wait()  # for the end of this process
            seconds, limit = time.monotonic() - start, self.board.timeout
            who = f"--key {self.board.key}: the server at {self.address}"
            if "RPCSessionTimeoutError" in str(error) or seconds >= limit:
                raise BoardError(
                    f"{who} was not done within {limit:g} s while it {what} (--rpc-timeout)"
                ) from error
            if self._is_open():
                raise
            raise BoardError(
                f"{who} died while it {what}: killed, out of memory, or --target has "
                "instructions that its processor lacks"
            ) from error

    def hang_up(self, until: float) -> None:
        """Say no more, and take what the server still sends until it ends the session.

        A session that begins is waited for: the server's answers are TVM's to read.
        """
        self._begun.wait(max(until - time.monotonic(), 0))
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                while (left := until - time.monotonic()) > 0:
                    # Not by a timeout of the socket, which TVM's client reads too.
                    ready, _, _ = select.select([connection], [], [], left)
                    if ready and not connection.recv(2**16, socket.MSG_DONTWAIT):
                        break

    def _is_open(self) -> bool:
        """Return whether the server still holds its end of every connection."""
        for connection in self._sockets:
            try:
                if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    return False
            except BlockingIOError:
                continue
            except OSError:
                return False
        return True

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call a function of the server's TVM; None where it has no such function."""
        with self.doing("was asked what it is"):
            try:
                function = self.remote.get_function(name)
            except AttributeError:
                return None
            return function(*arguments)

    def check_target(self, target: Any) -> None:
        """Raise for a target whose device the server lacks, or whose code its processor cannot run.

        A server without a compiler does not know its processor: there a wrong target is found
        when it dies.

        Raises
        ------
        BoardError
        """
        from .. import compat

        kind = str(target.kind.name)
        host = target if kind == "llvm" else target.host
        who = f"--key {self.board.key}: the server at {self.address}"
        with self.doing("was asked for its devices"):
            if host is not target and not self.remote.device(kind, 0).exist:
                raise BoardError(f"{who} has no device {kind}")
        triple = self._ask("target.llvm_get_system_triple")
        if host is None or triple is None:
            return
        wanted = str(host.attrs.get("mtriple", "") or compat.system_triple())
        if wanted.split("-")[0] != str(triple).split("-")[0]:
            raise BoardError(f"{who} is {triple}, --target is for {wanted}")
        there = self._ask("tvm.codegen.llvm.GetHostCPUFeatures")
        if there is None:
            return

        def has(feature: str) -> bool:
            known = self._ask("ffi.MapCount", there, feature)
            return not known or bool(self._ask("ffi.MapGetItem", there, feature))

        if missing := compat.missing_vectors(host, has):
            raise BoardError(f"{who} has no {', '.join(missing)}, which --target uses")

    def planned(self, target: Any) -> Any:
        """Return an llvm target that names no ``num-cores``, with as many threads as the server
        uses; kernels would be planned for those of this machine.
        """
        import tvm

        number = self.board.threads or self._ask("runtime.NumThreads")
        if target.kind.name != "llvm" or target.attrs.get("num-cores") or not number:
            return target
        return tvm.target.Target({**dict(target.export()), "num-cores": int(number)})


def hang_up() -> None:
    """End all sessions before this process ends in the middle of something.

    TVM's server dies with a session whose client vanishes while it runs: the board would be lost
    to everyone until somebody starts it again.
    """
    _leaving.set()
    until = time.monotonic() + PATIENCE
    for session in list(_open):
        session.hang_up(until)


def _refusal(error: Exception) -> str:
    """Why a server takes no session."""
    from .. import compat

    said = one_line(error, 200)
    if "pending_request_bytes_" in said or "version" in said.lower():
        release = compat.release().partition(",")[0]
        return f"runs a TVM whose RPC is not that of TVM {release} here: install the same"
    return f"takes no session: {said}"


def _sockets() -> set[int]:
    """File descriptors of this process that are connected sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found


def linker(board: Board, target: Any) -> str | None:
    """Return the linker for a target; None for this machine's own compiler.

    Raises
    ------
    BoardError
        There is none for the target's triple.
    """
    from .. import compat

    host = target if target.kind.name == "llvm" else target.host
    if board.compiler or host is None or compat.is_for_this_machine(host):
        return board.compiler
    triple = str(host.attrs["mtriple"])
    names = dict.fromkeys(
        f"{t}-{c}" for t in (triple, _without_vendor(triple)) for c in ("g++", "gcc", "clang")
    )
    if found := next(filter(shutil.which, names), None):
        return found
    raise BoardError(
        f"--target: nothing links for {triple}: install {next(iter(names))}, or say --cc"
    )


def _without_vendor(triple: str) -> str:
    """``aarch64-linux-gnu`` of ``aarch64-unknown-linux-gnu``, as compilers are called."""
    parts = triple.split("-")
    return "-".join(parts[:1] + parts[2:]) if len(parts) == 4 else triple


def export(executable: Any, board: Board, target: Any, library: Path) -> None:
    """Link a compiled module for a board into a shared library.

    Raises
    ------
    BoardError
        The linker fails.
    """
    compiler = linker(board, target)
    try:
        executable.export_library(str(library), **({"cc": compiler} if compiler else {}))
    except Exception as error:
        name = compiler or "this machine's compiler"
        raise BoardError(f"--key {board.key}: {name} cannot link: {one_line(error)}") from error


def upload(session: Session, library: Path) -> None:
    """Send a library.

    Raises
    ------
    BoardError
        The server does not take it.
    """
    try:
        with session.doing("was sent a library"):
            session.remote.upload(str(library))
    except BoardError:
        raise
    except Exception as error:
        what = f"a library of {library.stat().st_size / 1e6:.1f} MB"
        raise BoardError(
            f"--key {session.board.key}: the server at {session.address} does not take "
            f"{what}: {one_line(error)}"
        ) from error
