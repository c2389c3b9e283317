# SPDX-License-Identifier: Apache-2.0
"""The command line in words: all of it that is known before TVM is imported."""

from conv_cli.args import Usage

EXAMPLES = """\
examples:
  python -m relax_ext decoder.pt2                    compare on random inputs
  python -m relax_ext decoder.pt2 --grad             check the gradients too
  python -m relax_ext net.onnx --input x=photo.npy   on an input of your own
  python -m relax_ext net.onnx --dim batch=4         choose a free size
  python -m relax_ext net.tflite --shape x=4,32,32,3 choose the shape of an input
  python -m relax_ext net.onnx --threads 4 --json report.json
  python -m relax_ext decoder.pt2 --profile          which operators take the time
  python -m relax_ext tune decoder.pt2 --database plans.json
  python -m relax_ext decoder.pt2 --database plans.json
                                                     plans measured here, and by them
  python -m relax_ext net.onnx --rpc 10.0.0.2:9190 --key pi4 --target \
    '{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}'
                                                     run on a board behind TVM's RPC tracker

how to get a .pt2:
  torch.export.save(torch.export.export(model.eval(), (example_input,)), "decoder.pt2")
  Of its pickled objects only tensors and plain data are loaded. Its graph and its sizes are still
  a program: PyTorch evaluates them."""

USAGE = Usage(
    package="relax_ext",
    extensions=(".pt2", ".onnx", ".tflite"),
    frameworks="PyTorch, onnxruntime or LiteRT",
    examples=EXAMPLES,
    gradients="check gradients with torch.autograd too (.pt2 only)",
    takes_boards=True,
    takes_profile=True,
    takes_database=True,
    keeps_code=True,
)
