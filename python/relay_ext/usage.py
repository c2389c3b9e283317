# SPDX-License-Identifier: Apache-2.0
"""Texts of the command line that are available before TVM is imported."""

from conv_cli.args import Usage

EXAMPLES = """\
examples:
  python -m relay_ext decoder.pt --shape x=1,64,8,8  compare on random inputs
  python -m relay_ext decoder.pt --input x=photo.npy on an input of your own
  python -m relay_ext net.onnx --grad                check its convolutions' gradients too
  python -m relay_ext net.onnx --dim batch=4         choose a free size
  python -m relay_ext net.pb --shape x=1,64,64,3 --output logits
  python -m relay_ext net.onnx --threads 4 --json report.json

how to get a .pt:
  torch.jit.save(torch.jit.trace(model.eval(), (example_input,)), "decoder.pt")"""

USAGE = Usage(
    package="relay_ext",
    extensions=(".pt", ".ts", ".onnx", ".tflite", ".pb", ".keras"),
    frameworks="PyTorch, onnxruntime, LiteRT or TensorFlow",
    examples=EXAMPLES,
    gradients="check the gradients of every convolution with torch.autograd too",
    takes_outputs=True,
    keeps_code=True,
)
