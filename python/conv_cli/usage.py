# SPDX-License-Identifier: Apache-2.0
"""The command lines in words: all of them that is known before TVM is imported."""

from __future__ import annotations

from dataclasses import dataclass

SERVED = "relax_ext serves TVM 0.25 to 0.27, relay_ext TVM 0.17"


@dataclass(frozen=True)
class Usage:
    """Description of an adapter's command line.

    Attributes
    ----------
    package : str
        Its name, e.g. ``"relax_ext"``.
    extensions : tuple of str
        Extensions of the files that it reads.
    frameworks : str
        The frameworks that models are compared with.
    examples : tuple of tuple of str
        Arguments, and what they do.
    origin : str
        Advice on writing such a file.
    gradients : str
        Description of ``--grad``.
    takes : tuple of str
        Options that not every adapter has: ``output``, ``rpc``, ``profile``, ``database``.
    """

    package: str
    extensions: tuple[str, ...]
    frameworks: str
    examples: tuple[tuple[str, str], ...]
    origin: str
    gradients: str
    takes: tuple[str, ...]


RELAX = Usage(
    package="relax_ext",
    extensions=(".pt2", ".onnx", ".tflite"),
    frameworks="PyTorch, onnxruntime or LiteRT",
    examples=(
        ("decoder.pt2", "compare on random inputs"),
        ("decoder.pt2 --grad", "check the gradients too"),
        ("net.onnx --input x=photo.npy", "on an input of your own"),
        ("net.onnx --dim batch=4", "choose a free size"),
        ("net.tflite --shape x=4,32,32,3", "choose the shape of an input"),
        ("net.onnx --threads 4 --json report.json", ""),
        ("decoder.pt2 --profile", "which operators take the time"),
        ("tune decoder.pt2 --database plans.json", ""),
        ("decoder.pt2 --database plans.json", "plans measured here, and by them"),
        (
            "net.onnx --rpc 10.0.0.2:9190 --key pi4 --target \\\n    "
            '\'{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}\'',
            "run on a board behind TVM's RPC tracker",
        ),
    ),
    origin="""\
how to get a .pt2:
  torch.export.save(torch.export.export(model.eval(), (example_input,)), "decoder.pt2")
  Of its pickled objects only tensors and plain data are loaded. Its graph and its sizes are still
  a program: PyTorch evaluates them.""",
    gradients="check gradients with torch.autograd too (.pt2 only)",
    takes=("rpc", "profile", "database"),
)

RELAY = Usage(
    package="relay_ext",
    extensions=(".pt", ".ts", ".onnx", ".tflite", ".pb", ".keras"),
    frameworks="PyTorch, onnxruntime, LiteRT or TensorFlow",
    examples=(
        ("decoder.pt --shape x=1,64,8,8", "compare on random inputs"),
        ("decoder.pt --input x=photo.npy", "on an input of your own"),
        ("net.onnx --grad", "check its convolutions' gradients too"),
        ("net.onnx --dim batch=4", "choose a free size"),
        ("net.pb --shape x=1,64,64,3 --output logits", ""),
        ("net.onnx --threads 4 --json report.json", ""),
    ),
    origin="""\
how to get a .pt:
  torch.jit.save(torch.jit.trace(model.eval(), (example_input,)), "decoder.pt")""",
    gradients="check the gradients of every convolution with torch.autograd too",
    takes=("output",),
)
