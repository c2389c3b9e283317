# SPDX-License-Identifier: Apache-2.0
"""Summarize the rows of a benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from .arguments import PACKED_BASELINES

RATIOS = (
    "torch",
    "torch_prepacked",
    "torch_default",
    "stock",
    "symbolic",
    *PACKED_BASELINES,
    "best",
)
"""Keys of rows are ``ratio_`` and one of these."""


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per kind: counts, geometric means of the ratios, the worst cases, build times."""
    kinds = dict.fromkeys(row["kind"] for row in rows)
    return {kind: _kind([row for row in rows if row["kind"] == kind]) for kind in kinds}


def _kind(rows: list[dict[str, Any]]) -> dict[str, Any]:
    builds = [row["build_s"] for row in rows if row["build_s"] is not None]
    others = [row["others_cores"] for row in rows if row["others_cores"] is not None]
    errors = [row for row in rows if row["max_rel_error"] is not None]
    worst = max(errors, key=lambda row: row["max_rel_error"] / row["tolerance"], default=None)
    return {
        "cases": len(rows),
        "incorrect": [row["name"] for row in rows if row["incorrect"]],
        **{baseline: ratios_of(rows, f"ratio_{baseline}") for baseline in RATIOS},
        "worst_error": _named(worst, "max_rel_error"),
        "build_s_median": median(builds) if builds else None,
        "build_s_max": max(builds, default=None),
        "workspace_share_max": _workspace(rows),
        "others_cores": sum(others) / len(others) if others else None,
    }


def ratios_of(rows: Sequence[dict[str, Any]], key: str) -> dict[str, Any] | None:
    """Summarize a ratio: mean, extremes, and the rows in which the baseline is faster."""
    rated = sorted((row for row in rows if row.get(key) is not None), key=lambda row: row[key])
    if not rated:
        return None
    return {
        "cases": len(rated),
        "geomean": math.exp(sum(math.log(row[key]) for row in rated) / len(rated)),
        "median": median(row[key] for row in rated),
        "worst": _named(rated[0], key),
        "best": _named(rated[-1], key),
        "slower": [row["name"] for row in rated if row[key] < 1],
    }


def _workspace(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the largest workspace, as a share of input, output and weights."""
    shares = [
        {"name": row["name"], "value": row["workspace_bytes"] / row["operand_bytes"]}
        for row in rows
        if row["workspace_bytes"] is not None
    ]
    return max(shares, key=lambda share: share["value"], default=None)


def _named(row: dict[str, Any] | None, key: str) -> dict[str, Any] | None:
    return None if row is None else {"name": row["name"], "value": row[key]}
