# SPDX-License-Identifier: Apache-2.0
"""For python/tvm/relax/frontend/torch/base_fx_graph_translator.py: methods of the importer."""

from torch import fx

from tvm import relax


class BaseFXGraphImporter:
    def _conv_transpose3d_impl(
        self,
        x: relax.Expr,
        weight: relax.Expr,
        bias: relax.Expr | None,
        strides: tuple | None,
        padding: tuple | None,
        dilation: tuple | None,
        groups: tuple | None,
        output_padding: tuple | None,
    ) -> relax.Var:
        conv3d_transpose = self.block_builder.emit(
            relax.op.nn.conv3d_transpose(
                x,
                weight,
                strides=strides,
                padding=padding,
                dilation=dilation,
                groups=groups,
                output_padding=output_padding,
                data_layout="NCDHW",
                kernel_layout="IODHW",
                out_dtype=str(x.ty.dtype),
            )
        )

        if self._is_no_bias(bias):
            return conv3d_transpose

        assert len(self.shape_of(bias)) == 1
        bias = relax.op.reshape(bias, (1, -1, 1, 1, 1))
        return self.block_builder.emit(relax.op.add(conv3d_transpose, bias))

    def _conv_transpose3d(self, node: fx.Node) -> relax.Var:
        args = self.retrieve_args(node)
        x = args[0]
        weight = args[1]
        bias = args[2] if len(args) > 2 else None
        stride = args[3] if len(args) > 3 else 1
        padding = args[4] if len(args) > 4 else 0
        output_padding = args[5] if len(args) > 5 else 0
        groups = args[6] if len(args) > 6 else 1
        dilation = args[7] if len(args) > 7 else 1
        return self._conv_transpose3d_impl(
            x,
            weight,
            bias=bias,
            strides=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            output_padding=output_padding,
        )
