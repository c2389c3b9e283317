# SPDX-License-Identifier: Apache-2.0
"""TVM's importers, corrected where a model would mean something else than in its framework.

``doors`` puts corrections into TVM's importers and takes them out again; ``onnx``, ``torch`` and
``tflite`` hold them; ``padding`` is how frameworks speak of padding.  None imports a framework:
a door opens when TVM's importer is imported, which its user does.
"""

from .doors import correct, give_up, restore

__all__ = ["correct", "give_up", "restore"]
