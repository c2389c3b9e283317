# SPDX-License-Identifier: Apache-2.0
"""Converters of PyTorch's aten operators into Relax, one an operator.

``torch.compile`` imports its graphs by them.  They import torch when they are imported.
"""
