# SPDX-License-Identifier: Apache-2.0
"""The demo's half in Relay: decoders again, in a process of their own, for a TVM has one IR.

``python examples/relay_half.py OUT THREADS`` writes OUT/relay.pickle, a list of reports.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path

import models
import torch

from conv_cli.report import Bar
from relay_ext.cli import Options, check, set_threads
from relay_ext.cli.script_model import input_names

DECODERS = ("DCGAN", "V-Net", "FCN-8s")
"""Building takes TVM 0.17 seconds for each operator: these three have all that there is."""


def main() -> int:
    """Check the decoders; 0 unless something of ours is wrong."""
    warnings.simplefilter("ignore")
    out, threads = Path(sys.argv[1]), set_threads(int(sys.argv[2]))
    reports = []
    for name in DECODERS:
        path = out / f"{name}.pt"
        x = models.trace(name, str(path))
        (argument,) = input_names(torch.jit.load(path))
        with Bar() as bar:
            given = {argument: x.numpy()}
            options = Options(given=given, threads=threads, repeat=3, budget=0.4)
            report = check(path, options, bar)
        report.model = name
        reports.append(report)
    (out / "relay.pickle").write_bytes(pickle.dumps(reports))
    return 0 if all(report.ok for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
