# SPDX-License-Identifier: Apache-2.0
"""``python -m PACKAGE cache``: show or clear the cache of compiled code."""

from __future__ import annotations

from topi_ext.code_cache import disk as disk_cache
from topi_ext.target import host_target

from .adapter import Adapter
from .errors import CliError


def show(adapter: Adapter, clear: bool) -> int:
    """Print place and size, or remove all; 0."""
    folder = disk_cache.folder()
    if folder is None:
        print(f"no code is kept: {disk_cache.VARIABLE} says so, or no home is known")
        return 0
    if reason := disk_cache.fault():
        raise CliError(f"cache: {str(folder)[:200]} cannot be used: {reason}")
    count, bytes_ = disk_cache.clear() if clear else disk_cache.size()
    amount = f"{count} functions, {bytes_ / 2**20:.1f} MiB"
    limit = f"of at most {disk_cache.limit_bytes() >> 20} MiB"
    print(f"{folder}: {f'removed {amount}' if clear else f'{amount} {limit}'}")
    if reason := adapter.why_nothing_is_kept(host_target(1)):
        print(f"here nothing is kept or used: {reason}")
    return 0
