# SPDX-License-Identifier: Apache-2.0
"""The plan of two kernels, of which sizes choose one at run time."""

from __future__ import annotations

from dataclasses import dataclass

from .dot_product import InnerPlan
from .gemm_col2im import ScatterPlan
from .valid_taps import ClippedPlan
from .wgrad_channels import ChannelsPlan
from .wgrad_im2col import ColumnsPlan
from .window import Plan


@dataclass(frozen=True)
class EitherPlan(Plan):
    """Plan for symbolic sizes, which choose one of two when the kernel runs.

    Attributes
    ----------
    small : InnerPlan, ScatterPlan, ClippedPlan, ColumnsPlan or ChannelsPlan
        For no more than so many positions of y, where it has room for them.
    large : Plan
        For everything else: of any size.
    most, most_of_image : int, optional
        Of all images together, and of each; None for any number.
    """

    small: InnerPlan | ScatterPlan | ClippedPlan | ColumnsPlan | ChannelsPlan
    large: Plan
    most: int | None = None
    most_of_image: int | None = None
