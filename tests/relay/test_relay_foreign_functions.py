# SPDX-License-Identifier: Apache-2.0
"""The list of what this project replaces, or uses though it is private, in TVM 0.17 and in PyTorch
for its importers."""

from __future__ import annotations

from helpers import foreign
from relay_ext.build_time import PLACES


def test_this_release_is_the_one_that_we_know() -> None:
    foreign.assert_this_release_is_known("relay_ext")


def test_functions_of_importers_are_those_of_the_corrections() -> None:
    foreign.assert_importers_are_listed("relay_ext")


def test_functions_that_are_replaced_while_a_model_is_built_are_in_the_list() -> None:
    """But for that of LLVM, which is C++."""
    entries = foreign.listed().items()
    found = [
        {*name.replace(":", ".").split("."), *entry.get("names", ())}
        for name, entry in entries
        if entry["used"] == ["relay_ext/build_time.py"]
    ]
    wanted = [set(place.split(".")[-2:]) for place in PLACES if place != "target.build.llvm"]
    assert all(any(one <= names for names in found) for one in wanted) and len(found) == len(wanted)
