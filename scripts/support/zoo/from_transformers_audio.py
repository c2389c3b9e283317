# SPDX-License-Identifier: Apache-2.0
"""transformers: vocoders, codecs and encoders of sound."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from .weights import EAGER, Call, Catalog, Made, field

MODELS = Catalog()


# ---------------------------------------------------------------- vocoders

HIFI_GAN: dict[str, Any] = {
    "upsample_initial_channel": 32,
    "upsample_rates": [4, 4],
    "upsample_kernel_sizes": [8, 8],
    "resblock_kernel_sizes": [3, 7],
    "resblock_dilation_sizes": [[1, 3], [1, 3]],
}
"""Two levels of two residual blocks, where the published ones have four of three."""


@MODELS.model("SpeechT5HifiGan")
def speech_t5() -> Made:
    config = hf.SpeechT5HifiGanConfig(**HIFI_GAN)
    return hf.SpeechT5HifiGan(config), (torch.randn(1, 8, 80),)


@MODELS.model("FastSpeech2ConformerHifiGan")
def fast_speech_2() -> Made:
    config = hf.FastSpeech2ConformerHifiGanConfig(**HIFI_GAN)
    return hf.FastSpeech2ConformerHifiGan(config), (torch.randn(1, 4, 80),)


def _vits() -> Any:
    config = hf.VitsConfig(
        hidden_size=32,
        num_hidden_layers=1,
        ffn_dim=32,
        flow_size=32,
        spectrogram_bins=33,
        prior_encoder_num_flows=1,
        noise_scale=0.0,
        noise_scale_duration=0.0,
        **HIFI_GAN,
    )
    return hf.VitsModel(config)


@MODELS.model("VitsModel")
def vits() -> Made:
    return field(_vits(), "waveform"), (torch.randint(0, 30, (1, 6)),)


@MODELS.model("VitsModel, decoder")
def vits_decoder() -> Made:
    return _vits().decoder, (torch.randn(1, 32, 4),)


@MODELS.model("UnivNetModel")
def univnet() -> Made:
    config = hf.UnivNetConfig(
        model_in_channels=16, model_hidden_channels=8, kernel_predictor_hidden_channels=16
    )
    inputs = torch.randn(1, 4, 100), torch.randn(1, 4, 16)
    return Call(hf.UnivNetModel(config), lambda model, *x: model(*x).waveforms), inputs


# ---------------------------------------------------------------- codecs


def _sizes_known(model: nn.Module) -> nn.Module:
    """Return the same model, in which sizes that pad a convolution are integers and not tensors.

    ``EncodecConv1d`` and ``MimiConv1d`` keep stride and kernel size in buffers. So their padding is
    computed by operators on tensors, for which torch.export knows no number.
    """
    for layer in model.modules():
        if not hasattr(layer, "_get_extra_padding_for_conv1d"):
            continue
        names = ("stride", "kernel_size", "padding_total", "padding_left", "padding_right")
        for name in names:
            if hasattr(layer, name):
                number = int(getattr(layer, name))
                delattr(layer, name)
                setattr(layer, name, number)
        layer.__dict__["_get_extra_padding_for_conv1d"] = partial(_extra_padding, layer)
    return model


def _extra_padding(layer: Any, states: Tensor) -> int:
    """Return how much longer the input has to be, for a whole number of frames."""
    length = states.shape[-1]
    rest = length - layer.kernel_size + layer.padding_total
    return math.ceil(rest / layer.stride) * layer.stride - rest


def _encodec() -> Any:
    config = hf.EncodecConfig(
        num_filters=8,
        hidden_size=32,
        codebook_dim=32,
        codebook_size=64,
        upsampling_ratios=[4, 2],
        num_lstm_layers=1,
    )
    return hf.EncodecModel(config)


@MODELS.model("EncodecModel")
def encodec() -> Made:
    model = Call(_encodec(), lambda model, x: model(x, bandwidth=None).audio_values)
    return model, (torch.randn(1, 1, 640),)


@MODELS.model("EncodecModel, encoder")
def encodec_encoder() -> Made:
    return _sizes_known(_encodec().encoder), (torch.randn(1, 1, 640),)


@MODELS.model("EncodecModel, decoder")
def encodec_decoder() -> Made:
    return _sizes_known(_encodec().decoder), (torch.randn(1, 32, 6),)


def _dac() -> Any:
    config = hf.DacConfig(
        encoder_hidden_size=8,
        decoder_hidden_size=32,
        downsampling_ratios=[2, 4],
        upsampling_ratios=[4, 2],
        hidden_size=32,
        codebook_size=64,
        codebook_dim=8,
        n_codebooks=3,
    )
    return hf.DacModel(config)


@MODELS.model("DacModel, encoder")
def dac_encoder() -> Made:
    return _dac().encoder, (torch.randn(1, 1, 256),)


@MODELS.model("DacModel, decoder")
def dac_decoder() -> Made:
    return _dac().decoder, (torch.randn(1, 32, 8),)


def _mimi() -> Any:
    config = hf.MimiConfig(
        hidden_size=32,
        num_filters=8,
        codebook_size=32,
        codebook_dim=16,
        vector_quantization_hidden_dimension=16,
        num_hidden_layers=1,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        upsample_groups=32,
        num_quantizers=2,
        **EAGER,
    )
    return hf.MimiModel(config)


@MODELS.model("MimiModel, encoder")
def mimi_encoder() -> Made:
    return _sizes_known(_mimi().encoder), (torch.randn(1, 1, 1920),)


@MODELS.model("MimiModel, decoder")
def mimi_decoder() -> Made:
    return _sizes_known(_mimi().decoder), (torch.randn(1, 32, 4),)


@MODELS.model("MimiModel, upsample")
def mimi_upsample() -> Made:
    """One depthwise transposed convolution."""
    return _mimi().upsample, (torch.randn(1, 32, 5),)


# ---------------------------------------------------------------- encoders


@MODELS.model("WhisperModel, encoder")
def whisper() -> Made:
    config = hf.WhisperConfig(
        d_model=32,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=64,
        max_source_positions=50,
        num_mel_bins=20,
        decoder_layers=1,
        decoder_attention_heads=2,
        **EAGER,
    )
    return field(hf.WhisperModel(config).encoder, "last_hidden_state"), (torch.randn(1, 20, 100),)


@MODELS.model("Wav2Vec2Model")
def wav2vec2() -> Made:
    config = hf.Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        conv_dim=[16] * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        **EAGER,
    )
    return field(hf.Wav2Vec2Model(config), "last_hidden_state"), (torch.randn(1, 3200),)
