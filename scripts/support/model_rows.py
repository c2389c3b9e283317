# SPDX-License-Identifier: Apache-2.0
"""The command line of tools that judge one model after the other, and keep a row of each."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .output import write_json

Row = dict[str, Any]
"""Results of a model; ``right`` among them."""


def parser(text: str) -> argparse.ArgumentParser:
    """Return the parser of the command line, described by the first line of `text`."""
    made = argparse.ArgumentParser(description=text.split("\n\n")[0])
    made.add_argument("--only", nargs="+", metavar="NAME", help="only these models")
    made.add_argument("--list", action="store_true", help="print the names")
    made.add_argument("--json", type=Path, help="write the rows there; others stay")
    return made


def keep(path: Path, measured: Path, kept: Callable[[Row], Row] = dict) -> int:
    """Take the rows of a file over into one of docs/measured, where other rows stay."""
    rows = {name: kept(row) for name, row in json.loads(path.read_text()).items()}
    write_json(measured, json.loads(measured.read_text()) | rows)
    return 0


def run(
    command: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    catalogue: Callable[[], Mapping[str, Any]],
    judged: Callable[[Any, argparse.Namespace], Row],
    line: Callable[[Row], str],
) -> int:
    """Judge the models that are asked for; return the exit status."""
    given = command.parse_args(arguments)
    os.environ.setdefault("TVM_NUM_THREADS", "2")
    warnings.simplefilter("ignore")
    models = catalogue()
    if given.list:
        print("\n".join(models))
        return 0
    unknown = set(given.only or ()) - set(models)
    if unknown:
        command.error(f"--only: {', '.join(sorted(unknown))} must be of --list")
    rows = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    names = given.only or list(models)
    for number, name in enumerate(names, 1):
        rows[name] = judged(models[name], given)
        print(f"{number} of {len(names)}: {name}: {line(rows[name])}", flush=True)
        write_json(given.json, rows)
    right = sum(rows[name]["right"] for name in names)
    print(f"{right} of {len(names)} are right")
    return 0
