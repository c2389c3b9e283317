# SPDX-License-Identifier: Apache-2.0
"""Identify files in milliseconds, before torch and TVM are imported, which takes seconds."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from .errors import CliError


def check_model(path: Path, extensions: Collection[str]) -> None:
    """Raise if a file is not of the kind that its extension names; loading may still fail.

    Raises
    ------
    CliError
        For a file that is not of that kind or cannot be used.
    """
    try:
        if path.is_dir():
            raise CliError(f"{path}: is a directory")
        if not path.is_file():
            raise CliError(f"{path}: no such file")
        suffix = path.suffix.lower()
        if suffix not in extensions:
            raise CliError(
                f"{path}: unknown extension {suffix!r}, expected {listed(list(extensions))}"
            )
        kind = KINDS[suffix]
        found = _what_it_is(path)
    except OSError as error:
        raise CliError(f"{path}: cannot be read: {error.strerror}") from None
    if found != kind:
        raise CliError(f"{path}: not {kind}: it is {found}")


EXPORTED, SCRIPT, ONNX = "a torch.export file", "a TorchScript file", "an ONNX file"
TFLITE, GRAPH, KERAS = "a TFLite file", "a frozen TensorFlow graph", "a Keras file"
KINDS = {
    ".pt2": EXPORTED,
    ".pt": SCRIPT,
    ".ts": SCRIPT,
    ".onnx": ONNX,
    ".tflite": TFLITE,
    ".pb": GRAPH,
    ".keras": KERAS,
}
UNKNOWN = "no model of a kind known here"


def listed(words: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _what_it_is(path: Path) -> str:
    """One of the kinds, or in a few words what else."""
    with path.open("rb") as file:
        start = file.read(8)
        if not start:
            return "empty"
        if start[:4] == b"PK\x03\x04":
            return _archive(file)
        if start[4:] == b"TFL3":
            return TFLITE
        if start == b"\x89HDF\r\n\x1a\n":
            return "an HDF5 file: save the model as .keras"
        return _protobuf(file, path.stat().st_size)


def _archive(file: BinaryIO) -> str:
    """Identify a zip archive by the names of its members."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except Exception:  # whatever zipfile stumbles over
        return "a zip archive that is cut short or damaged"
    programs = [n for n in names if n.endswith(".json") and "models" in n.split("/")]
    if programs or any(n.endswith("serialized_exported_program.json") for n in names):
        return EXPORTED
    if any(n.endswith("constants.pkl") for n in names):
        return SCRIPT
    if any(n.endswith("data.pkl") for n in names):
        return "what torch.save writes, without a program"
    if {"config.json", "metadata.json"} <= set(names):
        return KERAS
    return "a zip archive of something else"


def _protobuf(file: BinaryIO, size: int) -> str:
    """Identify a protocol buffer by its outermost fields.

    A graph of ONNX is field 7. Of TensorFlow, nodes are field 1, beside the last field 4; of a
    SavedModel, field 1 is its version.
    """
    file.seek(0)
    found: set[tuple[int, int]] = set()
    while file.tell() < size:
        key = _varint(file)
        field, wire = key >> 3, key & 7
        known = 1 <= field <= ONNX_FIELDS and wire in (0, 1, 2, 5)
        value = ({1: 8, 5: 4}.get(wire) or _varint(file)) if known else -1
        if value < 0 or (wire and file.seek(value, 1) > size):
            # ONNX writes nearly all of a model as one field, TensorFlow one for each node.
            cut = _kind_of_fields(found | {(ONNX_GRAPH, 2)} if field == ONNX_GRAPH else found)
            return f"{cut} that is cut short" if cut in (ONNX, GRAPH) else UNKNOWN
        found.add((field, wire))
    return _kind_of_fields(found)


def _kind_of_fields(found: set[tuple[int, int]]) -> str:
    """Identify a protocol buffer that has these fields, by number and wire type."""
    if (ONNX_GRAPH, 2) in found:
        return ONNX
    if (1, 2) in found and found <= {(1, 2), (2, 2), (3, 0), (4, 2), (5, 2)}:
        return GRAPH
    if {(1, 0), (2, 2)} == found:
        return "a SavedModel: freeze its graph"
    return UNKNOWN


ONNX_GRAPH = 7
ONNX_FIELDS = 100
"""Numbers of ModelProto's fields: that of the graph, and one that none has reached."""


def _varint(file: BinaryIO) -> int:
    """Return the next number; -1 where there is none."""
    value = 0
    for shift in range(0, 64, 7):
        byte = file.read(1)
        if not byte:
            return -1
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return -1


def check_output(option: str, path: Path) -> None:
    """Raise if a file cannot be written, by trying; the attempt leaves nothing behind.

    Raises
    ------
    CliError
        For a file that is not of that kind or cannot be used.
    """
    try:
        if path.is_file() or path.is_dir():
            with path.open("ab"):
                pass
        elif not path.exists():  # what is neither, such as a pipe, is opened once only
            with tempfile.TemporaryFile(dir=path.parent):
                pass
    except OSError as error:
        raise CliError(f"{option} {path}: cannot be written: {error.strerror}") from None


def read_array(name: str, file: str) -> Any:
    """Return the array of ``--input NAME=FILE.npy``, in this machine's byte order and row by row.

    Raises
    ------
    CliError
        For a file that is not of that kind or cannot be used.
    """
    import numpy as np

    said = f"--input {name}={file}"
    try:
        array = np.load(file, allow_pickle=False)
    except FileNotFoundError:
        raise CliError(f"{said}: no such file") from None
    except Exception:  # whatever NumPy stumbles over
        raise CliError(f"{said}: not a .npy array") from None
    if not isinstance(array, np.ndarray):
        raise CliError(f"{said}: not a .npy array")
    if array.dtype.kind not in "fiub":
        raise CliError(f"{said}: dtype {array.dtype}, which is no real numbers")
    return array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
