# SPDX-License-Identifier: Apache-2.0
"""The backend ``tvm_conv`` of ``torch.compile``.

The only package of this project that imports torch when it is imported.
"""
