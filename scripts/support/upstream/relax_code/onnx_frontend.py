# SPDX-License-Identifier: Apache-2.0
"""For python/tvm/relax/frontend/onnx/onnx_frontend.py: a method of ConvTranspose."""

from tvm import tirx


class ConvTranspose:
    @classmethod
    def _pads_of_output_shape(cls, inputs, attr, strides, dilations, kernel_shape, output_padding):
        """Return the padding and output padding that give `output_shape`, by the formulas of the
        standard.

        A result that is to be longer than the natural one is padded behind.
        """
        sizes = inputs[0].ty.shape.values[2:]
        if not all(isinstance(size, tirx.IntImm) for size in sizes):
            raise ValueError(
                f"ConvTranspose with output_shape {attr['output_shape']} needs spatial sizes that "
                f"are known at import, but got {sizes}"
            )
        auto_pad = attr.get("auto_pad", "NOTSET")
        if isinstance(auto_pad, bytes):
            auto_pad = auto_pad.decode("utf-8")
        wanted = [int(size) for size in attr["output_shape"]][-len(kernel_shape) :]
        befores, afters, extras = [], [], []
        for size, kernel, stride, dilation, extra, target in zip(
            sizes, kernel_shape, strides, dilations, output_padding, wanted
        ):
            natural = (int(size) - 1) * stride + dilation * (kernel - 1) + 1
            total = max(natural + extra - target, 0)
            # The odd element is in front, but for SAME_UPPER.
            before = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            after = natural - before - target
            befores.append(before)
            afters.append(max(after, 0))
            extras.append(max(-after, 0))
        return befores + afters, extras
