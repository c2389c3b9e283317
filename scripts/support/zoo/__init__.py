# SPDX-License-Identifier: Apache-2.0
"""Models of other people's packages, imported and compiled by TVM and compared with PyTorch.

``catalog`` lists them, a module per package: constructors of small configurations, with inputs.
``weights`` draws random weights; ``stages`` exports, imports, compiles and compares;
``published`` has models in sizes that people run.
"""
