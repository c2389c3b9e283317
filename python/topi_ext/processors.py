# SPDX-License-Identifier: Apache-2.0
"""Processors that this process may use, and the threads that TVM's runtime starts.

TVM reads ``TVM_NUM_THREADS``, then ``OMP_NUM_THREADS``.  Without them it starts threads for half of
the logical processors of an x86 machine, and for all of another.  That is one of two on a virtual
machine without hyper-threads, and 32 of 64 in a container that may use two.

TVM also pins each thread to a processor, unless ``TVM_BIND_THREADS`` is 0.  A pinned thread waits
for its processor while another is idle.  A segmentation model beside another busy program took
118 ms with pinned threads and 71 ms with free ones; alone, both took the same time
(scripts/bench_models.py --busy).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from math import ceil, inf
from pathlib import Path

VARIABLES = ("TVM_NUM_THREADS", "OMP_NUM_THREADS")
"""Variables that TVM reads, in this order."""

BINDING = "TVM_BIND_THREADS"
"""Variable that states whether TVM pins its threads to processors."""


def usable(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, at least 1.

    It is the number of physical cores of the processors in the affinity mask, and at most the quota
    of the control groups (of a container), rounded up.  A processor whose core is not known counts
    as one.

    Parameters
    ----------
    root : Path
        Folder that contains ``/proc`` and ``/sys``.
    """
    return max(1, ceil(min(len(_cores(root)), _quota(root))))


def started() -> int | None:
    """Return the number of threads that variables tell TVM to start; None if none is set."""
    for name in VARIABLES:
        if name in os.environ:
            number = re.match(r"\s*[+-]?[0-9]{1,9}", os.environ[name])  # as C's atoi
            return max(1, int(number[0]) if number else 0)
    return None


def set_default_threads() -> None:
    """Make TVM start a thread for each usable core and pin none, unless variables are set.

    TVM reads the variables when it first runs, so it may be imported before.
    """
    if started() is None:
        os.environ["TVM_NUM_THREADS"] = str(usable())
    os.environ.setdefault(BINDING, "0")


def _cores(root: Path) -> set[str]:
    """Return a name for each physical core: the list of its processors, or its only one."""
    if hasattr(os, "sched_getaffinity"):
        mask = os.sched_getaffinity(0)
    else:
        mask = set(range(os.cpu_count() or 1))
    return {
        _text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        for cpu in mask
    }


def _quota(root: Path) -> float:
    """Return the smallest quota of the control groups of this process, in processors."""
    return min((float(quota) / float(period) for quota, period in _quotas(root)), default=inf)


def _quotas(root: Path) -> Iterator[tuple[str, str]]:
    """Yield quotas and periods: ``cpu.max`` of version 2, two files of version 1."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        groups = root / "sys/fs/cgroup" / controllers
        # A container sees its own group as the root, for every path.
        for group in (groups, *_below(groups, path)):
            if controllers:
                quota = _text(group / "cpu.cfs_quota_us")
                period = _text(group / "cpu.cfs_period_us")
            else:
                quota, _, period = _text(group / "cpu.max").partition(" ")
            if quota.isdigit() and period.isdigit() and int(period):  # neither "max" nor -1
                yield quota, period


def _below(groups: Path, path: str) -> Iterator[Path]:
    for name in filter(None, path.split("/")):
        groups = groups / name
        yield groups


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
