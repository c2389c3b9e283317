# SPDX-License-Identifier: Apache-2.0
"""The patches for TVM that ``tools/upstream.py`` writes."""
