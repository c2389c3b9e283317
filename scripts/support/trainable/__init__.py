# SPDX-License-Identifier: Apache-2.0
"""Models in train() mode, each with the loss that one trains it with, and a batch."""
