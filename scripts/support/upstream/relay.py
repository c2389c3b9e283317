# SPDX-License-Identifier: Apache-2.0
"""The series for TVM with Relay: 0.17."""

from __future__ import annotations

from .series import CODE, TOPI_TEST, Commit, Edit, NewFile, after, fragment, new_file, topi_commit

HERE = CODE / "relay_code"

_STRATEGY = "python/tvm/relay/op/strategy"
_GRADIENT = "python/tvm/relay/op/_tensor_grad.py"
_NN = "python/tvm/relay/op/nn/_nn.py"
_PYTORCH = "python/tvm/relay/frontend/pytorch.py"


def commits() -> list[Commit]:
    """Return all of them, in order."""
    return [_topi(), _strategy(), _backward_weight(), _gradients(), _pytorch()]


def _topi() -> Commit:
    tests = new_file("tests/python/topi/test_topi_conv_transpose.py", TOPI_TEST)
    for new, old in (("tvm.build(", "tvm.compile("), ("tvm.nd.array(", "tvm.runtime.tensor(")):
        tests = NewFile(tests.path, tests.text.replace(old, new))
    return topi_commit(
        """\
topi.nn.conv_transpose takes one, two and three spatial axes, any
permutation of the axes of data, kernel and output, strides, dilation,
groups, asymmetric or negative padding, and output padding up to the
stride or the dilation. Its reduction runs over the taps that meet data, not
over inserted zeros, and float16 is accumulated in float32.
""",
        tests,
    )


def _strategy() -> Commit:
    def transposed(file: str, docstring: str, condition: str) -> Edit:
        return after(
            f"{_STRATEGY}/{file}.py",
            f'    """{docstring}"""\n',
            f"    if {condition}:\n"
            "        return any_conv_transpose_strategy(attrs, inputs, out_type, target)\n",
        )

    def grouped(file: str, docstring: str) -> Edit:
        return after(
            f"{_STRATEGY}/{file}.py",
            f'    """{docstring}"""\n',
            "    if attrs.groups != 1:\n"
            "        return any_conv_strategy(attrs, inputs, out_type, target)\n",
        )

    plain, no_groups = "is_any_conv_transpose(attrs)", "is_any_conv_transpose(attrs, False)"
    return Commit(
        "[Relay][Strategy] Compute transposed convolutions of any layout, dilation and groups",
        """\
Layouts other than NC* and dilations ended in an assertion, groups of
conv3d_transpose too, and a kernel_layout other than IO* was ignored: with as
many input as output channels the values were silently wrong. What the
existing definitions do not compute goes to topi.nn.conv_transpose now, on
processors and GPUs. conv3d, and conv1d without a target's own strategy,
ignored groups: they go to topi.nn.conv.
""",
        [
            Edit(
                f"{_STRATEGY}/generic.py",
                "# conv2d_transpose\ndef wrap_compute_conv2d_transpose(",
                fragment(HERE / "strategy.py").rstrip("\n")
                + "\n\n\n# conv2d_transpose\ndef wrap_compute_conv2d_transpose(",
            ),
            transposed("generic", "conv1d_transpose generic strategy", plain),
            transposed("generic", "conv2d_transpose generic strategy", plain),
            transposed("generic", "conv3d_transpose generic strategy", no_groups),
            transposed("x86", "conv2d_transpose x86 strategy", plain),
            transposed("x86", "conv3d_transpose x86 strategy", no_groups),
            transposed("arm_cpu", "conv2d_transpose arm cpu strategy", no_groups),
            transposed("cuda", "conv1d_transpose cuda strategy", no_groups),
            transposed(
                "cuda", "conv2d_transpose cuda strategy", f'"cudnn" not in target.libs and {plain}'
            ),
            transposed("cuda", "conv3d_transpose cuda strategy", no_groups),
            grouped("generic", "conv1d generic strategy"),
            grouped("generic", "conv3d generic strategy"),
            grouped("x86", "conv3d generic strategy"),
        ],
    )


def _backward_weight() -> Commit:
    code = """\
    # Batch and channels exchanged it is a convolution of data by grad, in the same groups.
    groups = attrs.groups
    data = relay.reshape(data, [batch, groups, in_channel // groups, in_h, in_w])
    data = relay.transpose(data, [2, 1, 0, 3, 4])
    data = relay.reshape(data, [in_channel // groups, groups * batch, in_h, in_w])
    grad = relay.transpose(grad, [1, 0, 2, 3])

    backward_weight = relay.nn.conv2d(
        data,
        grad,
        strides=attrs.dilation,
        padding=attrs.padding,
        dilation=attrs.strides,
        groups=groups,
        channels=out_channel,
        kernel_size=(grad_h, grad_w),
        out_dtype=attrs.out_dtype,
    )

"""
    return Commit(
        "[Relay] Fix the values of conv2d_backward_weight with groups",
        """\
With groups fewer than the input channels the legalization tiled the gradient
of the output in the wrong order: values were silently wrong. With as many
groups the program failed at run time. It is a grouped convolution now.
""",
        [
            Edit(
                _NN,
                "    grad = relay.tile(grad, [1, in_channel // attrs.groups, 1, 1])\n",
                code,
                until="    # infer shape of backward_weight\n",
            ),
            Edit(
                _NN,
                "    backward_weight = relay.reshape(\n        backward_weight,\n        [\n"
                "            batch,\n",
                "",
                until="    backward_weight = relay.transpose(backward_weight, [1, 0, 2, 3])\n",
            ),
        ],
    )


def _gradients() -> Commit:
    return Commit(
        "[Relay] Add gradients of conv1d, conv3d and transposed convolutions",
        """\
conv2d alone had a gradient, in NCHW without dilation. Now conv1d, conv2d,
conv3d and their transposes have one, with groups, dilation, asymmetric
padding and output padding, in every layout without channel chunks. Operands
of another dtype than the output get a gradient of their own dtype.
""",
        [
            Edit(
                _GRADIENT,
                '@register_gradient("nn.conv2d")\n',
                fragment(HERE / "gradient.py").rstrip("\n") + "\n\n\n",
                until="def _get_reduce_axis(call):\n",
            ),
            NewFile(
                "tests/python/relay/test_conv_any_layout.py",
                new_file("", HERE / "test_conv_any_layout.py").text,
            ),
        ],
    )


def _pytorch() -> Commit:
    hack = "        # Conv1d does not currently support grouped convolution so we convert"
    return Commit(
        "[Relay][Frontend][PyTorch] Keep the rank of grouped convolutions, take padding='same'",
        """\
A grouped Conv1d became a conv2d, a depthwise Conv3d raised, and so did
padding="same". Grouped convolutions of one axis are conv1d now; the weight
is reshaped for depthwise conv2d alone.
""",
        [
            Edit(_PYTORCH, hack, "", until="        conv_out = conv_op(\n"),
            Edit(
                _PYTORCH,
                "        if is_grouped_conv1d:\n            # Because we conducted",
                "",
                until="        return res\n",
            ),
            Edit(
                _PYTORCH,
                "        if groups > 1 and in_channels == 1:\n"
                "            channel_multiplier = channels // groups\n",
                "        if groups > 1 and in_channels == 1 and len(weight_shape) == 4:\n"
                "            channel_multiplier = channels // groups\n",
            ),
            Edit(
                _PYTORCH,
                "    def softmax(self, inputs, input_types):\n",
                fragment(HERE / "pytorch.py") + "\n    def softmax(self, inputs, input_types):\n",
            ),
            after(
                _PYTORCH,
                '            "aten::_convolution": self.convolution,\n',
                '            "aten::_convolution_mode": self.convolution_mode,\n',
            ),
            NewFile(
                "tests/python/frontend/pytorch/test_conv.py",
                new_file("", HERE / "test_frontend_pytorch_conv.py").text,
            ),
        ],
    )
