# SPDX-License-Identifier: Apache-2.0
"""For python/tvm/relax/frontend/torch/fx_translator.py: a method of the importer."""

from torch import fx

from tvm import relax


class TorchFXImporter:
    def _conv_transpose3d_module(self, node: fx.Node) -> relax.Var:
        x = self.env[node.args[0]]
        module = self.named_modules[node.target]
        weight = self.params[module.weight]
        bias = self.params.get(module.bias, None)

        return self._conv_transpose3d_impl(
            x,
            weight,
            bias=bias,
            strides=module.stride,
            padding=module.padding,
            dilation=module.dilation,
            groups=module.groups,
            output_padding=module.output_padding,
        )
