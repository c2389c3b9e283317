# SPDX-License-Identifier: Apache-2.0
"""A folder of compiled models, and TVM's runtime for a machine that has neither TVM nor nvcc.

Libraries contain no weights: they take those of PyTorch's module and pack them once.  They contain
CUDA code, since TVM compiles it where it finds CUDA's runtime: the machine code is beside them.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

CPU = "llvm"
"""Architecture of a bundle for this machine's CPU, which tests the path without a GPU."""
ENGINES = {"ours": False, "ours_graph": True}
"""Libraries of a model, by whether they capture launches in a CUDA graph."""
RUNTIME = "runtime"
"""Folder of TVM's runtime."""
SAME = ("arch", "commit", "python")
"""Parts of the header that all models of a bundle share."""


@dataclass(frozen=True)
class Model:
    """A model of :mod:`gpu.models` for a batch and a dtype."""

    name: str
    batch: int
    dtype: str

    @property
    def stem(self) -> str:
        """Name of its files."""
        return f"{self.name.replace(' ', '-')}_{self.batch}_{self.dtype}"


class Bundle:
    """A folder of models, which a later call may extend.

    Parameters
    ----------
    folder : Path
    header : dict, optional
        Creates the folder if it is absent.

    Raises
    ------
    ValueError
        If the folder is absent, or of another architecture, commit or Python.
    """

    def __init__(self, folder: Path, header: dict[str, Any] | None = None) -> None:
        self.folder, about = folder, folder / "header.json"
        if header is not None and not about.exists():
            folder.mkdir(parents=True, exist_ok=True)
            about.write_text(json.dumps(header))
        try:
            self.header: dict[str, Any] = json.loads(about.read_text())
        except OSError as error:
            raise ValueError(f"{folder} is no bundle of models: {error}") from error
        for name in SAME if header is not None else ():
            if header is not None and self.header[name] != header[name]:
                raise ValueError(
                    f"--prepare: {folder} has models of {name} {self.header[name]}, not "
                    f"{header[name]}: remove it"
                )

    @property
    def device(self) -> str:
        """Device of PyTorch on which the models run."""
        return "cpu" if self.header["arch"] == CPU else "cuda"

    def __contains__(self, model: Model) -> bool:
        return (self.folder / f"{model.stem}.json").exists()

    def __iter__(self) -> Iterator[Model]:
        for path in sorted(self.folder.glob("*.json")):
            if path.name != "header.json":
                yield Model(**json.loads(path.read_text())["model"])

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of the libraries of each model."""
        return tuple(name for name, graph in ENGINES.items() if self.device == "cuda" or not graph)

    def library(self, model: Model, engine: str) -> Path:
        """Return the file of a compressed library."""
        return self.folder / f"{model.stem}_{engine}.so.gz"

    def weights(self, model: Model) -> list[str]:
        """Return the names of the weights, in the order of the arguments."""
        return json.loads((self.folder / f"{model.stem}.json").read_text())["weights"]

    def vectors(self, model: Model) -> Path:
        """Return the file of biases and statistics, which are constants of the library."""
        return self.folder / f"{model.stem}.pt"

    def add(self, model: Model) -> None:
        """Compile a model.  Its description is written last, so that it implies the other files."""
        import torch

        from support.errors import one_line

        from . import models, runtime

        module, inputs = models.make(model.name, model.batch, model.dtype)
        arch = self.header["arch"]
        try:
            imported, weights = without_weights(module, inputs)
            for engine in self.engines:
                executable = compiled(imported, arch, uses_graph=ENGINES[engine])
                with tempfile.TemporaryDirectory() as folder:
                    library = Path(folder, "model.so")
                    executable.export_library(str(library))
                    data = gzip.compress(library.read_bytes())
                self.library(model, engine).write_bytes(data)
                for source in sources(executable.mod):
                    runtime.add_machine_code(self.folder, source, arch)
        except Exception as error:
            raise ValueError(f"{model.stem}: {one_line(error)}") from error
        torch.save(
            {name: one for name, one in module.state_dict().items() if one.ndim < 2},
            self.vectors(model),
        )
        shapes = [tuple(one.shape) for one in inputs]
        listed = {"model": asdict(model), "weights": weights, "inputs": shapes}
        (self.folder / f"{model.stem}.json").write_text(json.dumps(listed) + "\n")

    @property
    def mebibytes(self) -> float:
        """Size of all files."""
        return sum(p.stat().st_size for p in self.folder.rglob("*") if p.is_file()) / 2**20


def add_all(bundle: Bundle, models: list[Model], jobs: int) -> Iterator[str]:
    """Compile models in `jobs` processes, and yield what became of each."""
    if jobs == 1:
        yield from (_added(bundle, model) for model in models)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(_added, bundle, model) for model in models]
        for one in as_completed(waiting):
            yield one.result()


def _added(bundle: Bundle, model: Model) -> str:
    try:
        bundle.add(model)
    except ValueError as error:
        return str(error)
    return model.stem


def without_weights(module: Any, inputs: list[Any]) -> tuple[Any, list[str]]:
    """Import a module as a function of its weights, and return their names in order.

    Biases and statistics are constants, so that batch norms become post-ops as in a model whose
    weights are constants too.
    """
    import torch
    from tvm import relax

    from relax_ext.cli.torch_model import to_relax

    exported = torch.export.export(module, tuple(inputs))
    imported, values = relax.frontend.detach_params(to_relax(exported, keep_params=True))
    weights, vectors = [], {}
    for variable, name, value in zip(
        imported["main"].params[len(inputs) :],
        exported.graph_signature.parameters,
        values["main"],
    ):
        if len(value.shape) < 2:
            vectors[variable] = value
        else:
            weights.append(name)
    return relax.transform.BindParams("main", vectors)(imported), weights


def compiled(module: Any, arch: str, *, uses_graph: bool) -> Any:
    """Return the executable of a function of weights, which also packs them."""
    import tvm

    import relax_ext
    from cuda_emulator.lowering import target_of
    from relax_ext.pipeline import with_packed_parameters

    target = relax_ext.host_target() if arch == CPU else target_of(arch)
    config = {"relax.backend.use_cuda_graph": uses_graph}
    with _without_cuda(), tvm.transform.PassContext(opt_level=3, config=config):
        split = with_packed_parameters(module, target)
        return tvm.compile(split, target, relax_pipeline=relax_ext.pipeline(target))


@contextmanager
def _without_cuda() -> Iterator[None]:
    """Let TVM keep CUDA code as text, also where its runtime could compile it."""
    name = "TVM_COMPILE_FORCE_FALLBACK"
    before = os.environ.get(name, "")
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ[name] = before


def sources(module: Any) -> Iterator[str]:
    """Yield the CUDA code of a module and of its imports."""
    if module.kind == "cuda":
        yield module.inspect_source("cuda")
    for one in module.imports:
        yield from sources(one)
