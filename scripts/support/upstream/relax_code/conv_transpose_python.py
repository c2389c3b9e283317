# SPDX-License-Identifier: Apache-2.0
"""Transposed convolution of any rank in python"""

import numpy as np


def conv_transpose_python(data, weight, strides, padding, output_padding, dilation, groups=1):
    """Transposed convolution by its definition: every input is spread over the outputs it meets.

    Parameters
    ----------
    data : numpy.ndarray
        [batch, in_channel, *in_size]

    weight : numpy.ndarray
        [in_channel, out_channel // groups, *kernel_size]

    strides, output_padding, dilation : list of int
        One value for each spatial axis.

    padding : list of int
        The values before all spatial axes and then those after.

    groups : int
        Number of groups.

    Returns
    -------
    out : numpy.ndarray
        [batch, out_channel, *out_size]
    """
    rank = len(strides)
    batch, in_channel, *in_size = data.shape
    kernel_size = weight.shape[2:]
    natural = [
        (i - 1) * s + d * (k - 1) + 1 for i, s, d, k in zip(in_size, strides, dilation, kernel_size)
    ]
    extent = [n + o for n, o in zip(natural, output_padding)]
    out = np.zeros((batch, weight.shape[1] * groups, *extent), data.dtype)
    data = data.reshape(batch, groups, in_channel // groups, *in_size)
    weight = weight.reshape(groups, in_channel // groups, *weight.shape[1:])
    for tap in np.ndindex(*kernel_size):
        place = tuple(
            slice(t * d, t * d + (i - 1) * s + 1, s)
            for t, d, i, s in zip(tap, dilation, in_size, strides)
        )
        met = np.einsum("ngi...,gio->ngo...", data, weight[(..., *tap)])
        out[(..., *place)] += met.reshape(batch, -1, *in_size)
    cut = [slice(b, e - a) for b, a, e in zip(padding[:rank], padding[rank:], extent)]
    return out[(..., *cut)]
