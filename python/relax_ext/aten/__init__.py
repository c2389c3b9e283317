# SPDX-License-Identifier: Apache-2.0
"""Converters of PyTorch's aten operators into Relax, one an operator.

``torch.compile`` imports its graphs by them (:mod:`relax_ext.torch.aten`).  TVM's importers take
them for calls of exported programs (:mod:`.exported`) and some of traced graphs (:mod:`.traced`).
They import torch when they are imported.
"""
