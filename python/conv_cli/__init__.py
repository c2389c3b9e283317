# SPDX-License-Identifier: Apache-2.0
"""Command line of the adapters: compare stock TVM, ours and the framework of a model.

Differences between IRs are behind an :class:`~conv_cli.adapter.Adapter`; the rest is here:
``__main__`` is ``tvm-conv``, ``launch`` begins and ends its process, ``args`` reads the command
line by the words of ``usage`` without TVM, and ``main`` imports the adapter then.  ``commands`` are
what it can do: ``model``, ``onnx_model`` and ``tflite_model`` load, ``operators`` tells
convolutions, ``measure`` compiles and times, ``check`` puts these together, ``report`` prints the
result.
"""
