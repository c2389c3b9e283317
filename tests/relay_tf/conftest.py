# SPDX-License-Identifier: Apache-2.0
"""Tests of Relay's importers beside TensorFlow: quiet, exact, and with our rules registered."""

from __future__ import annotations

import os

# Before TensorFlow is loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# oneDNN's conv3d reads beyond its operand where strides are longer than the kernel.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import pytest
import tensorflow as tf
from tvm.relay.frontend import tensorflow as importer

import relay_ext

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    relay_ext.register()
    # TVM parses its library of lists and trees for every graph: five seconds, and no part of these.
    monkeypatch.setattr(importer, "Prelude", lambda mod: None)
