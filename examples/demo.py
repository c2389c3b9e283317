# SPDX-License-Identifier: Apache-2.0
"""``make demo``: real decoders checked and timed, two models trained, a report written.

Exit status 1 when an operator of ours is wrong, or when training by TVM and by PyTorch differ in
the loss of one of the first steps: an autoencoder by more than 1e-4 in 50 steps, a U-Net with batch
norm, trained by relax_ext.training and by torch.compile, by more than 1e-2 in 30.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import pickle
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

# The importer of torch 2.13 warns about its own use of a pytree class.
warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")

import autoencoder  # noqa: E402 (what they import warns)
import models  # noqa: E402
import numpy as np  # noqa: E402
import page  # noqa: E402
import plots  # noqa: E402
import segmentation  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from tqdm import tqdm  # noqa: E402

import relax_ext  # noqa: E402
from conv_cli.report import Bar  # noqa: E402
from relax_ext.cli import Options, check, set_threads  # noqa: E402

STEPS, CHECKED, LIMIT, BATCH, SHOWN = 200, 50, 1e-4, 64, 12
UNET_CHECKED, UNET_LIMIT = 30, 1e-2
"""Checked steps, and the maximum relative difference. Roundings of float32 flip the sign of some
inputs of relu, in PyTorch as in TVM."""
DIFFERENTIATED = ("DCGAN",)


def check_decoders(out: Path, threads: int, console: Console) -> list[Any]:
    """Export every decoder, run the command line's check on it, say what came out."""
    reports = []
    for name in models.DECODERS:
        path = out / f"{name}.pt2"
        models.export(name, str(path))
        options = Options(grad=name in DIFFERENTIATED, threads=threads, repeat=3, budget=0.4)
        with Bar() as bar:
            report = check(path, options, bar)
        report.model = name
        reports.append(report)
        say(report, console)
    return reports


def say(report: Any, console: Console) -> None:
    """One line about one decoder."""
    whole = report.fastest
    times = "   ".join(
        f"{who} {plots.milliseconds(ms) if ms else 'fails':>7}"
        for who, ms in (
            ("stock", whole.stock.ms),
            (report.package, whole.ours.ms),
            ("PyTorch", whole.reference_ms),
        )
    )
    verdict = "[green]correct[/green]" if report.ok else "[bold red]incorrect[/bold red]"
    line = f"  {report.model:10}{len(report.rows):3} checks {verdict}   {times}"
    console.print(line, soft_wrap=True)
    for note in report.notes:
        console.print(f"  [dim]note: {note}[/dim]", soft_wrap=True)


def check_in_relay(out: Path, threads: int, python: Path, console: Console) -> list[Any]:
    """Return the same decoders in Relay, which has an environment and a process of its own."""
    half = Path(__file__).with_name("relay_half.py")
    written = out / "relay.pickle"
    written.unlink(missing_ok=True)
    subprocess.run([str(python), str(half), str(out), str(threads)], check=False)
    if not written.exists():
        raise RuntimeError(f"{half.name} stopped: see above")
    reports = pickle.loads(written.read_bytes())
    for report in reports:
        say(report, console)
    return reports


def train(steps: int) -> tuple[Any, Any, np.ndarray]:
    """Train from the same weights by PyTorch and by TVM: both histories, and the inputs shown."""
    torch.manual_seed(0)
    model = autoencoder.Autoencoder()
    twin = copy.deepcopy(model)
    data = autoencoder.digits()
    shown = data[:SHOWN]
    batches = autoencoder.batches(data, BATCH, steps)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # layers this small are faster so
    try:
        with tqdm(total=2 * steps, desc="  training", leave=False, disable=None) as bar:
            ours = autoencoder.train_tvm(
                twin, batches, shown, relax_ext.host_target(), lambda: bar.update()
            )
            theirs = autoencoder.train_torch(model, batches, shown, lambda: bar.update())
    finally:
        torch.set_num_threads(threads)
    return theirs, ours, shown.numpy()


@dataclass(frozen=True)
class Unet:
    """The histories of the U-Net, and the pictures that are shown."""

    theirs: Any
    ours: Any
    compiled: Any
    pictures: list[tuple[str, np.ndarray]]

    @property
    def difference(self) -> float:
        """The largest difference of the losses that are checked, relative to the loss."""
        return _apart(self.theirs, self.ours)

    @property
    def compiled_difference(self) -> float:
        """Return the largest relative difference of the losses by ``torch.compile``."""
        return _apart(self.theirs, self.compiled)

    @property
    def agrees(self) -> bool:
        """Return whether both are within the limit."""
        return max(self.difference, self.compiled_difference) <= UNET_LIMIT


def _apart(theirs: Any, ours: Any) -> float:
    count = min(UNET_CHECKED, len(ours.losses))
    apart = plots.relative_difference(theirs.losses[:count], ours.losses[:count])
    return float(apart.max())


def train_unet(steps: int) -> Unet:
    """Train the U-Net from the same weights by PyTorch, by TVM, and some steps by both."""
    torch.manual_seed(0)
    model = segmentation.UNet()
    twin, third = copy.deepcopy(model), copy.deepcopy(model)
    shown, target = segmentation.noisy(autoencoder.digits(SHOWN), seed=-1)
    data = segmentation.batches(BATCH, steps)
    total = 2 * steps + UNET_CHECKED
    with tqdm(total=total, desc="  training", leave=False, disable=None) as bar:
        ours = segmentation.train_tvm(twin, data, shown, bar.update)
        theirs = segmentation.train_torch(model, data, shown, bar.update)
        some = data[:UNET_CHECKED]
        compiled = segmentation.train_torch(third, some, shown, bar.update, "tvm_conv")
    rows = [("input", shown.numpy()), ("digit", target.numpy())]
    rows += [("PyTorch", theirs.found), ("TVM", ours.found)]
    return Unet(theirs, ours, compiled, rows)


def ratio(reports: Sequence[Any]) -> float:
    """Geometric mean over models of stock's time over ours."""
    logs = [math.log(r.fastest.speedup) for r in reports if r.fastest.speedup]
    return math.exp(sum(logs) / len(logs)) if logs else float("nan")


def write_report(
    out: Path,
    reports: list[Any],
    relay: list[Any],
    theirs: Any,
    ours: Any,
    shown: np.ndarray,
    unet: Unet,
    seconds: float,
) -> None:
    """Write report.html and report.json."""
    difference = plots.relative_difference(theirs.losses, ours.losses)
    worst = float(difference[:CHECKED].max())
    rows = [row for r in (*reports, *relay) for row in r.rows]
    incorrect = sum(row.wrong for row in rows)
    times = [
        plots.Times(r.model, r.fastest.stock.ms, r.fastest.ours.ms, r.fastest.reference_ms)
        for r in reports
    ]
    machine = f"{cpu_name()}, {os.cpu_count()} cores, {platform.system()}"
    ok = not incorrect and worst <= LIMIT and unet.agrees
    verdict = "and correct" if ok else "but incorrect"
    total = len(rows)
    checks = f"{incorrect} of {total} are incorrect" if incorrect else f"all {total} are correct"
    html = page.render(
        title=f"{ratio(reports):.0f} times as fast as stock TVM, {verdict}",
        lead=(
            f"Five decoders; of their checks, {checks}. Trained by TVM and by PyTorch, the loss of "
            f"each of the first {CHECKED} steps differs by <b class=new>{worst:.0e}</b> of its "
            "value at most."
        ),
        threads=str(reports[0].threads),
        speed=plots.svg(plots.speed(times), "speed"),
        notes=page.notes([*reports, *relay]),
        accuracy=page.accuracy(reports),
        relay=page.relay(relay),
        losses=plots.svg(plots.losses(theirs.losses, ours.losses, CHECKED, LIMIT), "losses"),
        pictures=plots.png(
            plots.pictures(
                [
                    ("input", shown),
                    ("PyTorch", theirs.reconstructions),
                    ("TVM", ours.reconstructions),
                ]
            )
        ),
        unet=(
            f"Losses of the first {UNET_CHECKED} steps differ by {unet.difference:.0e} at most, "
            f"those by torch.compile by {unet.compiled_difference:.0e}, limit {UNET_LIMIT:.0e}."
        ),
        unet_losses=plots.svg(
            plots.losses(unet.theirs.losses, unet.ours.losses, UNET_CHECKED, UNET_LIMIT), "unet"
        ),
        unet_pictures=plots.png(plots.pictures(unet.pictures)),
        details=page.details(reports),
        footer=(
            f"{escape(machine)}. TVM target {escape(reports[0].target)}, "
            f"{reports[0].threads} threads; PyTorch {torch.__version__}, the better of as many "
            f"threads and one. Best of at least 3 runs. Made in {seconds:.0f} s by make demo."
        ),
    )
    (out / "report.html").write_text(html)
    data = {
        "ok": ok,
        "machine": machine,
        "seconds": seconds,
        "speedup_over_stock": ratio(reports),
        "training": {
            "checked_steps": CHECKED,
            "limit": LIMIT,
            "worst_relative_difference": worst,
            "torch": theirs.losses.tolist(),
            "tvm": ours.losses.tolist(),
        },
        "unet": {
            "checked_steps": UNET_CHECKED,
            "limit": UNET_LIMIT,
            "worst_relative_difference": unet.difference,
            "torch": unet.theirs.losses.tolist(),
            "tvm": unet.ours.losses.tolist(),
        },
        "torch_compile": {
            "worst_relative_difference": unet.compiled_difference,
            "tvm": unet.compiled.losses.tolist(),
        },
        "models": [r.to_json() for r in reports],
        "relay": [r.to_json() for r in relay],
    }
    (out / "report.json").write_text(json.dumps(data, indent=1) + "\n")


def cpu_name() -> str:
    """Return the model name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status."""
    parser = argparse.ArgumentParser(description="Check decoders, train, write a report.")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="default: %(default)s")
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="of training, default: %(default)s"
    )
    parser.add_argument(
        "--relay", type=Path, metavar="PYTHON", help="also in Relay, by this Python"
    )
    chosen = parser.parse_args(argv)
    chosen.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    console = Console(highlight=False)
    threads = set_threads(chosen.threads)
    console.print("[bold]Five decoders[/bold], stock TVM and relax_ext against PyTorch")
    reports = check_decoders(chosen.out, threads, console)
    relay = []
    if chosen.relay:
        console.print("[bold]The same in Relay[/bold], TVM 0.17")
        relay = check_in_relay(chosen.out, threads, chosen.relay, console)
    console.print(f"[bold]An autoencoder[/bold], trained for {chosen.steps} steps, all in TVM")
    theirs, ours, shown = train(max(chosen.steps, CHECKED))
    worst = plots.relative_difference(theirs.losses, ours.losses)[:CHECKED].max()
    agrees = bool(worst <= LIMIT)
    verdict = "[green]agrees[/green]" if agrees else "[bold red]DIFFERS[/bold red]"
    console.print(
        f"  loss {ours.losses[0]:.4f} to {ours.losses[-1]:.4f}; {verdict} with PyTorch's to "
        f"{worst:.0e} of its value over {CHECKED} steps, limit {LIMIT:.0e}"
    )
    console.print("[bold]A U-Net with batch norm[/bold], trained by relax_ext.training")
    unet = train_unet(max(chosen.steps, UNET_CHECKED))
    verdict = "[green]agrees[/green]" if unet.agrees else "[bold red]DIFFERS[/bold red]"
    console.print(
        f"  loss {unet.ours.losses[0]:.4f} to {unet.ours.losses[-1]:.4f}; {verdict} with PyTorch's "
        f"to {unet.difference:.0e} of its value over {UNET_CHECKED} steps, limit {UNET_LIMIT:.0e}"
    )
    console.print(
        '  by torch.compile(model, backend="tvm_conv"), with the optimizer of PyTorch: to '
        f"{unet.compiled_difference:.0e}"
    )
    seconds = time.perf_counter() - start
    write_report(chosen.out, reports, relay, theirs, ours, shown, unet, seconds)
    console.print(f"Report: {chosen.out / 'report.html'} ({seconds:.0f} s)")
    return 0 if agrees and unet.agrees and all(r.ok for r in (*reports, *relay)) else 1


if __name__ == "__main__":
    sys.exit(main())
