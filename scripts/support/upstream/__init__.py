# SPDX-License-Identifier: Apache-2.0
"""The patches for TVM that ``scripts/upstream.py`` writes."""
