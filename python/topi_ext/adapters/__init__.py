# SPDX-License-Identifier: Apache-2.0
"""Code that the Relax and the Relay adapter share: calls, registration, hooks into importers."""
