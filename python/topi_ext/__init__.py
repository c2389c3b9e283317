# SPDX-License-Identifier: Apache-2.0
"""What is computed and how: convolutions, transposed convolutions and their weight gradients.

Importing this package registers nothing.  ``import relax_ext`` for Relax, ``relay_ext`` for Relay.
"""
