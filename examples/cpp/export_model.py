# SPDX-License-Identifier: Apache-2.0
"""The generator of DCGAN as a shared library, and an input and PyTorch's output to compare with.

``python export_model.py FOLDER [--target JSON] [--compiler C++]`` writes ``model.so``,
``input.bin`` and ``wanted.bin``: float32 in the order of memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

# The importer of torch 2.13 warns about its own use of a pytree class.
warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
sys.path.insert(0, str(Path(__file__).parents[1]))

import models  # noqa: E402 (the demo's, beside this folder)
import torch  # noqa: E402
import tvm  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program  # noqa: E402
from tvm.support import cc  # noqa: E402

import relax_ext  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="", help="JSON; this machine if left out")
    parser.add_argument("--compiler", default="c++", help="links the library")
    given = parser.parse_args()
    model, example = models.make("DCGAN")
    with torch.no_grad():
        wanted = model.double()(example.double()).float()
        exported = torch.export.export(model.float(), (example,))
    module = from_exported_program(exported, unwrap_unit_return_tuple=True)
    target = relax_ext.host_target()
    if given.target:
        target = tvm.target.Target(json.loads(given.target))
    executable = tvm.compile(module, target, relax_pipeline=relax_ext.pipeline(target))
    given.folder.mkdir(parents=True, exist_ok=True)
    library = str(given.folder / "model.so")
    executable.export_library(library, fcompile=cc.cross_compiler(given.compiler))
    example.numpy().tofile(given.folder / "input.bin")
    wanted.numpy().tofile(given.folder / "wanted.bin")


if __name__ == "__main__":
    main()
