# SPDX-License-Identifier: Apache-2.0
"""The series for TVM with Relax: its main branch, 0.27 and 0.26."""

from __future__ import annotations

from .series import (
    CODE,
    TOPI_TEST,
    Commit,
    Edit,
    NewFile,
    Substitution,
    after,
    before,
    fragment,
    new_file,
    topi_commit,
)

HERE = CODE / "relax_code"

_NN = "python/tvm/relax/transform/legalize_ops/nn.py"
_GRADIENT = "python/tvm/relax/op/_op_gradient.py"
_CONVOLUTION = "src/relax/op/nn/convolution.cc"
_TORCH = "python/tvm/relax/frontend/torch"
_ONNX = "python/tvm/relax/frontend/onnx/onnx_frontend.py"
_LEGALIZE_TESTS = "tests/python/relax/test_transform_legalize_ops_nn.py"


def commits() -> list[Commit]:
    """Return all of them, in order."""
    return [_topi(), _legalize(), _gradients(), _output_padding(), _torch(), _onnx()]


def _test(directory: str, name: str) -> NewFile:
    return new_file(f"tests/python/{directory}/{name}", HERE / name)


def _topi() -> Commit:
    return topi_commit(
        """\
topi.nn.conv_transpose takes one, two and three spatial axes, any
permutation of the axes of data, kernel and output, strides, dilation,
groups, asymmetric or negative padding, and output padding up to the
stride or the dilation.

The existing definitions spread the data by the stride, and zero-fill the
kernel for a dilation, so of a stride of 2 three products in four are with
inserted zeros. Here a reduction runs over the taps that meet data: output
positions are phases of step = stride / gcd(stride, dilation), and each
phase has its own taps. All phases together are one matrix product, of
(batch, position) by (output channel, phase), which rules for GPUs
recognise; a second compute interleaves them. Unscheduled on a CPU this
takes a fourth to a fifteenth of the time with stride 2 or a dilation, and
as long as before with neither.

float16 and bfloat16 are accumulated in float32. A sum of 8192 bfloat16
products in bfloat16 is 13 % wrong.
""",
        new_file("tests/python/te/test_topi_conv_transpose.py", TOPI_TEST),
    )


def _legalize() -> Commit:
    structural = [
        ("test_conv1d_transpose", "test_conv2d"),
        ("test_conv2d_transpose", "test_conv3d_transpose"),
        ("test_conv3d_transpose", "test_conv3d_transpose_with_out_dtype"),
        ("test_conv3d_transpose_with_out_dtype", "test_conv2d_transpose_with_out_dtype"),
        ("test_conv2d_transpose_with_out_dtype", "test_conv2d_transpose_symbolic"),
        ("test_conv2d_transpose_dilation", "test_max_pool2d"),
    ]
    return Commit(
        "[Relax] Legalize convolutions in every layout without channel chunks",
        """\
conv1d, conv2d, conv3d and their transposes passed LegalizeOps unchanged
where a layout was none that TOPI takes as it is, e.g. NHWC for a transposed
convolution, or an out_layout that differs from data_layout. They ended in
"CodeGenVM cannot emit". Kernel layouts whose spatial letters are not in
order, such as HOIWD, gave wrong shapes.

Now any permutation is legalized. A layout with channel chunks (NCHW4c)
is still left as it is, on purpose: backends that bring their own code
generator match such calls.

Transposed convolutions of constant spatial sizes use
topi.nn.conv_transpose, as two functions where a stride interleaves phases.
Those of symbolic spatial sizes are computed as before: rules for GPUs can
share the loops of one function with inserted zeros among threads, but not
those of an interleaving of 2 * n - 1 rows.

The tests that spelled the inserted zeros out are replaced by tests of
values.
""",
        [
            Edit(
                _NN,
                '@register_legalize("relax.nn.conv1d")\n',
                fragment(HERE / "legalize.py").rstrip("\n") + "\n\n\n",
                until='@register_legalize("relax.nn.pad")\n',
            ),
            *(
                Edit(
                    _LEGALIZE_TESTS,
                    f"def {name}():\n",
                    "",
                    until=f"def {following}():\n",
                    may_be_absent=True,
                )
                for name, following in structural
            ),
            _test("relax", "test_legalize_conv_layouts.py"),
        ],
    )


def _gradients() -> Commit:
    return Commit(
        "[Relax] Add gradients of conv1d, conv3d and transposed convolutions",
        """\
conv2d alone had a gradient, in NCHW without dilation: with a dilation it
raised, or gave a data gradient of the wrong shape, since the size of the
output was computed as if there were none.

Now conv1d, conv2d, conv3d and their transposes have one, with groups,
dilation, asymmetric padding and output padding, in every layout without
channel chunks. Both gradients are convolutions again. Operands of another
dtype than the output get a gradient of their own dtype.
""",
        [
            Edit(
                _GRADIENT,
                '@register_gradient("relax.nn.conv2d")\n',
                fragment(HERE / "gradient.py").rstrip("\n") + "\n\n\n",
                until='@register_gradient("relax.nn.max_pool2d")\n',
            ),
            Edit(
                _GRADIENT,
                "from .nn import conv2d, conv2d_transpose\n",
                "from .nn import (\n    conv1d,\n    conv1d_transpose,\n    conv2d,\n"
                "    conv2d_transpose,\n    conv3d,\n    conv3d_transpose,\n)\n",
            ),
            Edit(
                _GRADIENT,
                "import functools\nimport operator\n",
                "import functools\nimport operator\nfrom collections.abc import Sequence\n",
            ),
            _test("relax", "test_op_gradient_conv.py"),
        ],
    )


def _output_padding() -> Commit:
    def condition(rank: int) -> Edit:
        tests = [f"attrs->output_padding[{i}] >= attrs->strides[{i}]" for i in range(rank)]
        return Edit(
            _CONVOLUTION,
            "  if (" + " ||\n      ".join(tests) + ") {\n",
            "  if (!IsOutputPaddingValid(attrs->output_padding, attrs->strides, "
            "attrs->dilation)) {\n",
        )

    header = (HERE / "output_padding.h").read_text()
    texts = [
        Edit(
            _CONVOLUTION,
            f'        << "Conv{rank}dTranspose expects the output padding less than the strides, '
            'but the "\n           "output padding is"\n'
            '        << attrs->output_padding << " while the strides are" << attrs->strides;\n',
            f'        << "Conv{rank}dTranspose expects the output padding to be at least 0 and '
            'less than "\n           "the strides or the dilation, but the output padding is "\n'
            '        << attrs->output_padding << " while the strides are " << attrs->strides\n'
            '        << " and the dilation is " << attrs->dilation;\n',
        )
        for rank in (1, 2, 3)
    ]
    dead = Edit(
        _CONVOLUTION,
        "  } else if (!(attrs->output_padding[0] < attrs->strides[0])) {\n",
        "",
        until="  }\n\n  PrimExpr input_w = data_NCW_shape[2];\n",
    )
    include = Edit(
        _CONVOLUTION,
        "#include <vector>\n",
        '#include <vector>\n\n#include "output_padding.h"\n',
    )
    return Commit(
        "[Relax] Allow output_padding of transposed convolutions up to the dilation",
        """\
PyTorch and ONNX take an output padding that is smaller than the stride or
the dilation: a dilation leaves positions that no tap meets, and the padding
chooses among them. Relax compared with the stride alone, so such models
could not be imported. Negative values were not refused.
""",
        [
            NewFile("src/relax/op/nn/output_padding.h", header),
            include,
            *(condition(rank) for rank in (1, 2, 3)),
            *texts,
            dead,
            _test("relax", "test_op_nn_conv_output_padding.py"),
        ],
        needs=_CONVOLUTION,
    )


def _torch() -> Commit:
    base = f"{_TORCH}/base_fx_graph_translator.py"
    fx, exported = f"{_TORCH}/fx_translator.py", f"{_TORCH}/exported_program_translator.py"
    unsupported = (
        "            else:\n                raise ValueError("
        'f"Unsupported transposed convolution dimensionality: {ndim}")\n'
    )
    call = """\
            elif ndim == 5:  # 3D convolution (N, C, D, H, W)
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
"""
    return Commit(
        "[Relax][Frontend][Torch] Convert ConvTranspose3d, and keep the dtype of convolutions",
        """\
ConvTranspose3d raised. All convolutions stated out_dtype="float32", so
models in float16 and float64 raised or returned float32; they state the
dtype of their input now.
""",
        [
            Substitution(
                base,
                '                out_dtype="float32",\n',
                "                out_dtype=str(x.ty.dtype),\n",
                start="    def _conv_transpose1d_impl(\n",
                until="    def _convolution(self",
                count=5,
            ),
            before(base, "    def _conv1d_impl(\n", fragment(HERE / "torch_base.py") + "\n"),
            before(base, unsupported, call),
            before(fx, "    def _conv1d_module(self", fragment(HERE / "torch_fx.py") + "\n"),
            after(
                fx,
                "            nn.ConvTranspose2d: self._conv_transpose2d_module,\n",
                "            nn.ConvTranspose3d: self._conv_transpose3d_module,\n",
            ),
            after(
                fx,
                '            "conv_transpose2d": self._conv_transpose2d,\n',
                '            "conv_transpose3d": self._conv_transpose3d,\n',
            ),
            after(
                exported,
                '            "conv_transpose2d.input": self._conv_transpose2d,\n',
                '            "conv_transpose3d.input": self._conv_transpose3d,\n',
            ),
            _test("relax", "test_frontend_torch_conv_transpose.py"),
        ],
    )


def _onnx() -> Commit:
    opening = (
        "class ConvTranspose(OnnxOpConverter):\n"
        '    """Converts an onnx ConvTranspose node into an equivalent Relax expression."""\n\n'
    )
    call = """\
        if "output_shape" in attr:
            attr["pads"], output_padding = cls._pads_of_output_shape(
                inputs, attr, strides, dilations, kernel_shape, output_padding
            )
            attr.pop("auto_pad", None)

"""
    return Commit(
        "[Relax][Frontend][ONNX] Respect output_shape of ConvTranspose",
        """\
The attribute was ignored: the result silently had another shape. Padding
follows from it by the formulas of the standard, with the odd element behind
for SAME_UPPER and in front otherwise.
""",
        [
            after(_ONNX, opening, fragment(HERE / "onnx_frontend.py") + "\n"),
            before(_ONNX, "        # Resolve `auto_pad` per ONNX ConvTranspose spec.", call),
            _test("relax", "test_frontend_onnx_output_shape.py"),
        ],
    )
