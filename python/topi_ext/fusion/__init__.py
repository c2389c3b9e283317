# SPDX-License-Identifier: Apache-2.0
"""Rules of fusion that know no IR: which operators one kernel computes, and which problem that is.

``anchors``, ``products``, ``rows``, ``transposes`` and ``resizes`` describe the operator that a
kernel begins with.  ``axes`` names its axes through reshapes and transposes.  ``post_ops`` and
``chain`` hold the operators behind it.  Adapters match calls of their IR and hand over shapes,
attributes and dtypes.
"""
