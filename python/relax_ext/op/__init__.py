# SPDX-License-Identifier: Apache-2.0
"""The operators in Relax: types, legalization, gradients, layouts."""
