# SPDX-License-Identifier: Apache-2.0
"""Converters of PyTorch's aten operators into Relax, one an operator.

``torch.compile`` imports its graphs by them (:mod:`relax_ext.torch.aten`), and TVM's importers take
them for exported programs (:mod:`.exported`) and traced graphs (:mod:`.traced`).  TVM's own
converters are taken for other operators (:mod:`.stock`).  They import torch when they are imported.
"""
