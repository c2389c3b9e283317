# SPDX-License-Identifier: Apache-2.0
"""The kernels for CUDA under the compiler's sanitizers: of addresses, of what C++ leaves undefined,
and of threads, each of a block a thread of the machine."""

from __future__ import annotations

import pytest

from helpers.emulated import DIRECT, SMALL_KERNELS, check

KERNELS = {**SMALL_KERNELS, "direct": DIRECT}


@pytest.mark.parametrize("name", KERNELS)
def test_addresses_and_undefined_behaviour(name: str) -> None:
    check(*KERNELS[name], mode="sanitize", orders=(0, 2))


@pytest.mark.parametrize("name", SMALL_KERNELS)
def test_threads(name: str) -> None:
    check(*SMALL_KERNELS[name], mode="threads")
