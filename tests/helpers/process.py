# SPDX-License-Identifier: Apache-2.0
"""Programs in a Python of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping


def in_new_process(code: str, *arguments: object, env: Mapping[str, str] | None = None) -> str:
    """Run a program that must succeed, without warnings; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ if env is None else env,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
