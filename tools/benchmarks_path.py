# SPDX-License-Identifier: Apache-2.0
"""Put ``benchmarks/`` on the path: ``import benchmarks_path`` before what a tool takes from there.

Tools import cases, the environment and measurements from ``benchmarks/`` (packages ``benchmark``,
``gpu`` and ``zoo``).  Nothing in ``benchmarks/`` imports a tool.
"""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
CASES = BENCHMARKS / "cases"

if str(BENCHMARKS) not in sys.path:
    # Behind the folder of the tool itself, whose modules come first.
    sys.path.insert(1, str(BENCHMARKS))
