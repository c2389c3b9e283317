# SPDX-License-Identifier: Apache-2.0
"""For python/tvm/relay/op/strategy/generic.py: convolutions in any layout, with any groups."""

from tvm import te, topi
from tvm.relay.op import op as _op
from tvm.topi.utils import get_const_tuple


# convolutions of any rank, layout, groups and dilation
def is_any_conv_transpose(attrs, has_groups=True):
    """Return whether a transposed convolution is none that the definitions of one layout
    compute.
    """
    spatial = "DHW"[3 - len(attrs.strides) :]
    return (
        attrs.data_layout != "NC" + spatial
        or attrs.kernel_layout != "IO" + spatial
        or attrs.out_layout not in ("", attrs.data_layout)
        or any(int(d) != 1 for d in attrs.dilation)
        or any(int(p) >= int(s) for p, s in zip(attrs.output_padding, attrs.strides))
        or (attrs.groups != 1 and not has_groups)
    )


def _check_layouts_of_any_conv(attrs):
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    if any(len(layout) != len(attrs.strides) + 2 for layout in layouts):
        raise ValueError(f"convolution in layouts {layouts}: channel chunks are not supported")
    return layouts


def any_conv_transpose_strategy(attrs, inputs, out_type, target):
    """transposed convolution by topi.nn.conv_transpose"""
    layouts = _check_layouts_of_any_conv(attrs)

    def compute(attrs, inputs, out_type):
        out = topi.nn.conv_transpose(
            inputs[0],
            inputs[1],
            get_const_tuple(attrs.strides),
            get_const_tuple(attrs.padding),
            get_const_tuple(attrs.output_padding),
            get_const_tuple(attrs.dilation),
            attrs.groups,
            *layouts,
            out_type.dtype,
        )
        return [out]

    strategy = _op.OpStrategy()
    strategy.add_implementation(compute, schedule_any_conv, name="conv_transpose.any")
    return strategy


def any_conv_strategy(attrs, inputs, out_type, target):
    """convolution by topi.nn.conv: with groups, where no other definition has them"""
    layouts = _check_layouts_of_any_conv(attrs)

    def compute(attrs, inputs, out_type):
        out = topi.nn.conv(
            inputs[0],
            inputs[1],
            get_const_tuple(attrs.strides),
            get_const_tuple(attrs.padding),
            get_const_tuple(attrs.dilation),
            attrs.groups,
            layouts[0],
            layouts[1],
            out_type.dtype,
        )
        return [out]

    if layouts[0] != layouts[2]:
        raise ValueError(f"convolution in layouts {layouts}: out_layout must be data_layout")
    strategy = _op.OpStrategy()
    strategy.add_implementation(compute, schedule_any_conv, name="conv.any")
    return strategy


def schedule_any_conv(attrs, outs, target):
    """Return every stage parallel, or bound to threads; what can be inlined is"""
    outs = [outs] if isinstance(outs, te.Tensor) else list(outs)
    schedule = te.create_schedule([out.op for out in outs])
    for stage in schedule.stages:
        if not isinstance(stage.op, te.ComputeOp) or not stage.op.axis:
            continue
        readers = [
            other.op
            for other in schedule.stages
            if any(tensor.op.same_as(stage.op) for tensor in other.op.input_tensors)
        ]
        inlined = readers and all(isinstance(op, te.ComputeOp) for op in readers)
        if inlined and not stage.op.reduce_axis and not stage.is_output:
            stage.compute_inline()
        elif "gpu" in target.keys:
            with target:
                topi.cuda.injective.schedule_injective_from_existing(schedule, stage.op.output(0))
        else:
            own = schedule[stage.op.output(0)]
            axes = stage.op.axis
            own.parallel(own.fuse(*axes[:-1]) if len(axes) > 1 else axes[0])
    return schedule
