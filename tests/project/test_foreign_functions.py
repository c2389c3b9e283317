# SPDX-License-Identifier: Apache-2.0
"""The list of what this project replaces, or uses though it is private, in TVM and PyTorch: it is
complete, and the installed releases have what it states."""

from __future__ import annotations

import re
from typing import Any

import pytest

import relax_ext
from foreign_functions import ADAPTERS, differences, source
from helpers import foreign
from relax_ext.gradients import GRADIENTS
from relax_ext.legalizations import LEGALIZATIONS
from topi_ext.compat import op_attr

OF_OTHERS = {"_exit": "os", "_inbound_nodes": "keras"}
"""Private names of other packages than TVM and PyTorch."""
FROM_FX = "tvm.relax.frontend.torch.fx_translator:TorchFXImporter.from_fx"


@pytest.mark.smoke
def test_this_release_is_the_one_that_we_know() -> None:
    pytest.importorskip("torch")
    foreign.assert_this_release_is_known("relax_ext")


@pytest.mark.smoke
def test_functions_of_importers_are_those_of_the_corrections() -> None:
    pytest.importorskip("torch")
    foreign.assert_importers_are_listed("relax_ext")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hashes": {"tvm 0.24": "0"}}, "differs from that of tvm 0.24"),
        ({"hashes": {}}, "is new in the list"),
        ({"names": ["renamed"]}, "has no renamed"),
    ],
)
def test_a_change_is_told(change: dict[str, Any], said: str) -> None:
    pytest.importorskip("torch")
    entry = {**foreign.listed()[FROM_FX], **change}
    with relax_ext.stock():
        (line,) = differences({FROM_FX: entry})
    assert re.fullmatch(f"{FROM_FX} of tvm [0-9.]+ {said}: replaced, relax_ext/importers", line)


@pytest.mark.parametrize("name", ["tvm.no_module", "tvm.tirx:no_function", "tvm.tirx:Var.missing"])
def test_what_is_missing_is_told(name: str) -> None:
    entry = {"why": "called", "used": ["relax_ext"], "hashes": {}}
    (line,) = differences({name: entry})
    assert line.endswith("is missing: called, relax_ext")


def test_each_private_name_is_in_the_list() -> None:
    """Beside the file that uses it."""
    unknown = []
    for place, names in foreign.private_names().items():
        known = set(OF_OTHERS)
        for name, entry in foreign.listed().items():
            if any(map(place.startswith, entry["used"])):
                known |= {name, *re.split(r"[.:]", name), *entry.get("names", ())}
                known.add(name.partition(":")[0].replace("._", ":_"))  # imported as a module
        unknown += [f"{place}: {name}" for name in names - known]
    assert not unknown, "add them to tests/data/foreign_functions.json"


def test_each_entry_is_used() -> None:
    """Each place has a name of its entry; an adapter as a whole says where an entry is needed."""
    unused = []
    for name, entry in foreign.listed().items():
        wanted = {*entry.get("names", ()), *re.split("[.:]", name.partition(":")[2])[-1:]} - {""}
        places = {place for place in entry["used"] if "/" in place}
        for place in places - {f"{one}/importers" for one in ADAPTERS} if wanted else ():
            root = foreign.PYTHON / place
            files = [path for path in (root, *root.rglob("*.py")) if path.is_file()]
            text = "\n".join(path.read_text() for path in files)
            if not any(re.search(rf"\b{one}\b", text) for one in wanted):
                unused.append(f"{name}: {place}")
    assert not unused


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("key", "rules", "folder"),
    [("FPrimalGradient", GRADIENTS, "gradients"), ("FLegalize", LEGALIZATIONS, "legalizations")],
)
def test_rules_that_are_replaced_are_those_of_listed_modules(
    key: str, rules: dict[str, Any], folder: str
) -> None:
    with relax_ext.stock():
        stock = [op for op in rules if op_attr(op, key) is not None]
    listed = foreign.listed().items()
    modules = [name for name, entry in listed if entry["used"] == [f"relax_ext/{folder}"]]
    text = "\n".join(source(module)[1] for module in modules)
    assert stock and not [op for op in stock if f'"{op}"' not in text]
