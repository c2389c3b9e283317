# SPDX-License-Identifier: Apache-2.0
"""Registration of an adapter's rules with TVM's operators, shared by both adapters.

Rules are attributes of TVM's operators, which belong to the process.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ..compat import Replaced, is_replaced, process_state, restore_op_attrs


class Registration(ABC):
    """TVM's own attributes of operators, and whether the rules of this package are active.

    Both belong to the process, as the operators do: an adapter may be imported twice.

    Parameters
    ----------
    package : str
        The adapter.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self.state = process_state(package)
        self.replaced: Replaced = self.state.setdefault("replaced", {})

    @abstractmethod
    def install(self) -> None:
        """Set our rules.  What is still noted another package has set after us: it stays."""

    def remove(self) -> None:
        """Restore the attributes that our rules replaced, unless they have been set since."""
        restore_op_attrs(self.replaced)

    def give_up(self) -> list[str]:
        """Forget what is not ours any more; its names."""
        names = [f"{key} of {op}" for op, key in self.replaced]
        self.replaced.clear()
        return names

    def update(self) -> None:
        """Make TVM's operators what they should be now."""
        is_wanted = self.state.get("wanted") and not self.state.get("stock_blocks")
        owner = self if is_wanted else None
        if self.state.get("owner") is owner:
            return
        self.remove()
        if owner:
            self.install()
        self.state["owner"] = owner

    def register(self) -> None:
        """Our rules from here on; inside of :meth:`stock` from its end on."""
        self.state["wanted"] = True
        self.update()

    def unregister(self) -> None:
        """TVM's own rules from here on; a warning names what another package has set after us."""
        self.state["wanted"] = False
        self.update()
        if left := self.give_up():
            warnings.warn(
                f"{self.package}: unregister() leaves what was set after ours: {', '.join(left)}",
                stacklevel=3,
            )

    @contextmanager
    def stock(self) -> Iterator[None]:
        """TVM's own rules inside the block, which may be nested."""
        self._block(1)
        try:
            yield
        finally:
            self._block(-1)

    def _block(self, more: int) -> None:
        self.state["stock_blocks"] = self.state.get("stock_blocks", 0) + more
        self.update()

    def are_ours(self, op: str, keys: Collection[str]) -> bool:
        """Return whether all these attributes of an operator are our rules now."""
        return all(is_replaced(self.replaced, op, key) for key in keys)
