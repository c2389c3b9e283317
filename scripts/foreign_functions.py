# SPDX-License-Identifier: Apache-2.0
"""Renew the list of what this project replaces, or uses though it is private, in TVM and PyTorch.

tests/data/foreign_functions.json has an entry for each function, class or module: why it is listed,
the files or folders of python/ that use it, the attributes that they read (`names`), and a hash of
its source in each release.  Write a new entry by hand, without hashes.  Functions of TVM's
importers are added by this script, which reads the corrections of an adapter.

Run it in the environment of each release.  It prints what is missing or differs from the release
before, and adds the hashes of the installed one.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from topi_ext.adapters.import_hooks import find

LIST = Path(__file__).parents[1] / "tests" / "data" / "foreign_functions.json"
ADAPTERS = ("relax_ext", "relay_ext")

Entries = dict[str, dict[str, Any]]


def read(adapter: str) -> Entries:
    """Return the entries that concern an adapter, with those of its importers."""
    entries: Entries = json.loads(LIST.read_text())
    for name, why in of_importers(adapter).items():
        new = {"why": why, "used": [f"{adapter}/importers"], "hashes": {}}
        entries.setdefault(name, new)["why"] = why
    return {n: e for n, e in entries.items() if any(one.startswith(adapter) for one in e["used"])}


def of_importers(adapter: str) -> dict[str, str]:
    """Return functions of TVM's importers that corrections replace or call, and which of both."""
    made = {}
    for name, importer in import_module(f"{adapter}.importers").HOOKS.importers.items():
        module = import_module(name)
        replaced = importer.corrections(module)
        for path in {**importer.needs, **replaced}:
            if find(module, path)[0] is not None:  # else it is new in a table
                made[f"{name}:{path}"] = "replaced" if path in replaced else "called"
    return made


def release(name: str) -> str:
    """Return package and installed release of an entry."""
    package = re.split("[.:]", name)[0]
    version = import_module(package).__version__.split(".")
    return f"{package} {version[0]}.{version[1]}"


def source(name: str) -> tuple[Any, str]:
    """Return what an entry names, and its source, empty if that is not Python's; raise LookupError
    if there is nothing."""
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise LookupError(name) from error
    if path:
        owner, attribute = find(found, path)
        if owner is None:
            raise LookupError(name)
        found = (owner if isinstance(owner, Mapping) else vars(owner))[attribute]
    while isinstance(found, partial):
        found = found.func
    found = getattr(found, "__func__", found)  # of a class or static method
    try:
        return found, inspect.getsource(found)
    except (OSError, TypeError):
        return found, ""


def digest(name: str) -> str:
    """Return the hash of a source."""
    text = source(name)[1]
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else ""


def difference(name: str, entry: Mapping[str, Any]) -> str:
    """Return how an entry differs from the list, empty if it does not.

    A release that is not in the list is compared with the last one that is.  TVM's functions must
    be its own: call it inside of ``stock()`` of the adapter.
    """
    hashes, since = entry["hashes"], release(name)
    try:
        found, text = source(name)
    except LookupError:
        return "is missing"
    for one in entry.get("names", ()):
        if not hasattr(found, one) and not re.search(rf"\b{one}\b", text):
            return f"has no {one}"
    if since not in hashes:
        since = next(reversed(hashes), "")
    if hashes.get(since) == digest(name):
        return ""
    return f"differs from that of {since}" if since else "is new in the list"


def differences(entries: Entries) -> list[str]:
    """Return a line for each entry that differs from the list."""
    return [
        f"{name} of {release(name)} {what}: {entry['why']}, {', '.join(entry['used'])}"
        for name, entry in entries.items()
        if (what := difference(name, entry))
    ]


def main() -> None:
    """Print the differences, and write the list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--adapter", choices=ADAPTERS, default=ADAPTERS[0])
    adapter = parser.parse_args().adapter
    with import_module(adapter).stock():
        entries = read(adapter)
        print(*differences(entries), sep="\n")
        for name, entry in entries.items():
            with suppress(LookupError):
                entry["hashes"][release(name)] = digest(name)
    every = {**json.loads(LIST.read_text()), **entries}
    lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(every.items())]
    LIST.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
