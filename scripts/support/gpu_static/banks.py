# SPDX-License-Identifier: Apache-2.0
"""Cycles of shared memory, and sectors of global memory, that the accesses of warps take.

Shared memory has 32 banks of 4 bytes.  A warp's request of 8 bytes a thread is served by halves,
one of 16 bytes by quarters, and each of these parts in as many cycles as a bank has different words
in it.  Global memory is read and written by sectors of 32 bytes.
"""

from __future__ import annotations

import numpy as np

WARP, BANKS, WORD, SECTOR = 32, 32, 4, 32


def wavefronts(addresses: np.ndarray, mask: np.ndarray, width: int) -> tuple[int, int, int, int]:
    """Requests of a block's warps for shared memory, the cycles that they take, the least that
    they would without conflicts, and the most of one part.

    Parameters
    ----------
    addresses : array
        Bytes, of each thread.
    mask : array
        Which threads take part.
    width : int
        Bytes of a thread.
    """
    part = WARP // max(1, width // WORD)
    requests = taken = least = worst = 0
    for warp in range(0, len(addresses), WARP):
        active = mask[warp : warp + WARP]
        if not active.any():
            continue
        requests += 1
        for start in range(warp, min(warp + WARP, len(addresses)), part):
            chosen = mask[start : start + part]
            if not chosen.any():
                continue
            words = _words(addresses[start : start + part][chosen], width)
            cycles = int(np.bincount(words % BANKS).max())
            taken, least = taken + cycles, least + -(-len(words) // BANKS)
            worst = max(worst, cycles)
    return requests, taken, least, worst


def sectors(addresses: np.ndarray, mask: np.ndarray, width: int) -> tuple[int, int, int, int]:
    """Return the same for global memory: requests, sectors, the least of them, the most of a
    warp.
    """
    requests = taken = least = worst = 0
    for warp in range(0, len(addresses), WARP):
        active = mask[warp : warp + WARP]
        if not active.any():
            continue
        bytes_ = np.unique(addresses[warp : warp + WARP][active])
        ends = np.unique(np.concatenate([bytes_ // SECTOR, (bytes_ + width - 1) // SECTOR]))
        requests, taken = requests + 1, taken + len(ends)
        least += min(len(ends), -(-len(bytes_) * width // SECTOR))
        worst = max(worst, len(ends))
    return requests, taken, least, worst


def _words(addresses: np.ndarray, width: int) -> np.ndarray:
    """Different words of an access."""
    first = addresses // WORD
    each = max(1, width // WORD)
    return np.unique((first[:, None] + np.arange(each)).ravel())
