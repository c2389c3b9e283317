# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/add-a-kernel.md adds a kernel: what it says works, as it stands there."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from helpers.documents import DOCS, blocks
from topi_ext.cpu import kernels, plan, registry
from topi_ext.cpu.select.choose import rated

PAGE = DOCS / "how-to" / "add-a-kernel.md"


def test_the_kernel_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan and kernel are put in their packages, the row in the registry, and its test is run."""
    files = {block.file: (block.line, block.text) for block in blocks(PAGE) if block.file}
    assert set(files) == {
        "plan/channel_scale.py",
        "kernels/channel_scale.py",
        "registry.py",
        "test.py",
    }

    def run(file: str, names: dict[str, object]) -> dict[str, object]:
        line, text = files[file]
        exec(compile("\n" * line + text, str(PAGE), "exec"), names)
        return names

    def module(package: ModuleType, file: str) -> ModuleType:
        name = f"{package.__name__}.channel_scale"
        made = ModuleType(name)
        made.__package__ = package.__name__
        monkeypatch.setitem(sys.modules, name, made)
        monkeypatch.setattr(package, "channel_scale", made, raising=False)
        run(file, vars(made))
        return made

    planned = module(plan, "plan/channel_scale.py")
    module(kernels, "kernels/channel_scale.py")
    line, text = files["registry.py"]
    row = eval(compile("\n" * line + text, str(PAGE), "eval"), {**vars(registry), **vars(planned)})
    rated.cache_clear()
    try:
        with registry.KERNELS.added(row):
            run("test.py", {"__name__": "page"})
    finally:
        rated.cache_clear()
