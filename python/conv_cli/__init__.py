# SPDX-License-Identifier: Apache-2.0
"""Command line of the adapters: compare stock TVM, ours and the framework of a model.

Differences between IRs are behind an :class:`~conv_cli.adapter.Adapter`; the rest is here: ``args``
reads the command line, ``model``, ``onnx_model`` and ``tflite_model`` load, ``operators`` tells
convolutions, ``measure`` compiles and times, ``check`` puts these together, ``report`` prints the
result.
"""
