# SPDX-License-Identifier: Apache-2.0
"""For python/tvm/relay/frontend/pytorch.py: a method of the converter."""


class PyTorchOpConverter:
    def convolution_mode(self, inputs, input_types):
        """Convolution whose padding is "same" or "valid"; an odd one is larger behind"""
        data, weight, bias, strides, padding, dilation, groups = inputs
        kernel_size = self.infer_shape(weight)[2:]
        if padding == "valid":
            pads = [0] * len(kernel_size)
        elif padding == "same" and all(int(stride) == 1 for stride in strides):
            totals = [int(d) * (int(k) - 1) for d, k in zip(dilation, kernel_size)]
            pads = [total // 2 for total in totals]
            pads += [total - pad for total, pad in zip(totals, pads)]
        else:
            raise ValueError(f"Unsupported padding {padding} of a convolution, strides {strides}")
        return self.convolution(
            [data, weight, bias, strides, pads, dilation, 0, [0], groups], input_types
        )
