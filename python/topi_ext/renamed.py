# SPDX-License-Identifier: Apache-2.0
"""Earlier names of modules: importing one returns the current module, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

RENAMED = {
    "topi_ext.compute": "topi_ext.te.definitions",
    "topi_ext.conv_transpose": "topi_ext.te.conv_transpose",
    "topi_ext.dtypes": "topi_ext.spec.dtypes",
    "topi_ext.geometry": "topi_ext.spec.geometry",
    "topi_ext.gradients": "topi_ext.spec.gradients",
    "topi_ext.kernel_info": "topi_ext.kernel.info",
    "topi_ext.layout": "topi_ext.spec.layout",
    "topi_ext.plan_database": "topi_ext.tuning.database",
    "topi_ext.reference": "topi_ext.spec.reference",
    "relax_ext.ops": "relax_ext.op.ops",
}
"""Earlier names of modules that the documents named, and those of today."""


class RenamedModules(MetaPathFinder, Loader):
    """Finds the module of today under its earlier name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an earlier name, None for any other."""
        return ModuleSpec(fullname, self) if fullname in RENAMED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of today, and warn the file that imports it."""
        name = RENAMED[spec.name]
        warnings.warn(f"{spec.name} is {name} now", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, which the import system has replaced."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Make earlier names importable; once per process."""
    if not any(isinstance(finder, RenamedModules) for finder in sys.meta_path):
        sys.meta_path.append(RenamedModules())
