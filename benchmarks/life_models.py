"""The architectures that `life_sweep.py` takes through a life: small configurations, random weights."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Maker = Callable[[], nn.Module]
Inputs = Callable[[int], dict[str, Any]]

# name -> (image size, options); options that make it small where the model lets them
TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "levit_128s": (
        64,
        {"img_size": 64, "embed_dim": (32, 48, 64), "depth": (1, 1, 1), "num_heads": (2, 3, 4), "key_dim": 8},
    ),
    "tiny_vit_5m_224": (
        64,
        {
            "embed_dims": (16, 32, 32, 32),
            "depths": (1, 1, 1, 1),
            "num_heads": (1, 2, 2, 2),
            "window_sizes": (4, 4, 2, 2),
        },
    ),
    "efficientvit_m0": (
        64,
        {
            "img_size": 64,
            "embed_dim": (16, 32, 48),
            "depth": (1, 1, 1),
            "num_heads": (2, 2, 2),
            "window_size": (4, 4, 4),
        },
    ),
    "efficientformerv2_s0": (
        64,
        {
            "img_size": 64,
            "depths": (1, 1, 1, 1),
            "embed_dims": (8, 16, 16, 24),
            "mlp_ratios": (2, 2, 2, (2,)),
        },
    ),
    "test_vit": (32, {"img_size": 32}),
    "test_resnet": (32, {}),
    "test_efficientnet": (32, {}),
    "test_efficientnet_evos": (32, {}),
    "test_byobnet": (32, {}),
    "test_convnext": (32, {}),
    "test_convnext3": (32, {}),
    "test_mambaout": (32, {}),
    "test_nfnet": (32, {}),
    "vit_tiny_patch16_224": (32, {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3}),
    "deit_tiny_distilled_patch16_224": (32, {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3}),
    "beit_base_patch16_224": (32, {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 2}),
    "eva02_tiny_patch14_224": (28, {"img_size": 28, "embed_dim": 24, "depth": 2, "num_heads": 2}),
    "cait_xxs24_224": (32, {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 2}),
    "xcit_nano_12_p16_224": (32, {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 2}),
    "convnext_atto": (32, {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}),
    "swin_tiny_patch4_window7_224": (
        32,
        {"img_size": 32, "window_size": 4, "embed_dim": 12, "depths": (2, 1), "num_heads": (2, 2)},
    ),
    "swinv2_tiny_window8_256": (
        32,
        {"img_size": 32, "window_size": 4, "embed_dim": 12, "depths": (2, 1), "num_heads": (2, 2)},
    ),
    "pvt_v2_b0": (64, {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 16, 32), "num_heads": (1, 2, 2, 4)}),
    "twins_svt_small": (
        64,
        {"img_size": 64, "embed_dims": (8, 16, 16, 32), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 4)},
    ),
    "convit_tiny": (
        32,
        {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 2, "local_up_to_layer": 1},
    ),
    "edgenext_xx_small": (64, {"depths": (1, 1, 2, 2), "dims": (8, 16, 16, 24)}),
    "davit_tiny": (64, {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 16, 32), "num_heads": (1, 2, 2, 4)}),
    "resnet10t": (32, {}),
    "mobilenetv3_small_050": (64, {}),
    "lcnet_035": (64, {}),
    "dpn48b": (64, {"k_sec": (1, 1, 1, 1)}),
    "starnet_s050": (64, {}),
    # Classes, where the registered models cannot be made small.
    "mlp_mixer.MlpMixer": (32, {"img_size": 32, "embed_dim": 24, "num_blocks": 2}),
    "convmixer.ConvMixer": (32, {"dim": 16, "depth": 2}),
    "focalnet.FocalNet": (
        32,
        {"embed_dim": 12, "depths": (1, 1), "focal_levels": (2, 2), "focal_windows": (3, 3)},
    ),
    "metaformer.MetaFormer": (32, {"depths": (1, 1), "dims": (8, 16)}),
    "nest.Nest": (
        32,
        {
            "img_size": 32,
            "patch_size": 4,
            "num_levels": 2,
            "embed_dims": (8, 16),
            "num_heads": (1, 2),
            "depths": (1, 1),
        },
    ),
    "crossvit.CrossVit": (
        32,
        {
            "img_size": 32,
            "img_scale": (1.0, 1.0),
            "patch_size": (8, 16),
            "embed_dim": (8, 16),
            "depth": ((1, 1, 0),),
            "num_heads": (2, 2),
            "mlp_ratio": (2.0, 2.0, 1.0),
        },
    ),
    "volo.VOLO": (
        32,
        {
            "img_size": 32,
            "layers": (1, 1),
            "embed_dims": (8, 16),
            "num_heads": (2, 2),
            "downsamples": (True, False),
            "outlook_attention": (True, False),
            "mlp_ratio": 2.0,
            "use_mix_token": False,
        },
    ),
}


def make_timm(name: str) -> tuple[Maker, Inputs]:
    """A maker of fresh models of this name, and one of inputs by batch size."""
    if importlib.util.find_spec("timm") is None:
        raise ModuleNotFoundError("timm is not installed")
    _declare_torchvision_ops()
    import timm

    size, options = TIMM[name]

    def inputs(batch: int) -> dict[str, Any]:
        return {"x": torch.randn(batch, 3, size, size)}

    if "." in name:
        file, _, kind = name.partition(".")
        made = getattr(importlib.import_module(f"timm.models.{file}"), kind)
        return lambda: made(num_classes=5, **options), inputs
    return lambda: timm.create_model(name, num_classes=5, **options), inputs


_declared: list[Any] = []


def _declare_torchvision_ops() -> None:
    """A torchvision without its compiled part, beside a CPU build of torch, imports if its ops have names."""
    if (
        not _declared
        and importlib.util.find_spec("torchvision")
        and not hasattr(torch.ops.torchvision, "nms")
    ):
        _declared.append(torch.library.Library("torchvision", "DEF"))
        for op in ("nms", "qnms"):
            _declared[0].define(f"{op}(Tensor boxes, Tensor scores, float threshold) -> Tensor")


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {"vocab_size": 40, "max_position_embeddings": 32, "use_cache": False, "pad_token_id": 0}
GATED = {**SIZES, **TEXT, "num_key_value_heads": 1, "head_dim": 8}
OLD_GPT = {"vocab_size": 40, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "use_cache": False}
BART = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "use_cache": False,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
PICTURE = {"image_size": 16, "patch_size": 4}


def ids(batch: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 40, (batch, 8))}


def padded(batch: int) -> dict[str, Any]:
    mask = (torch.arange(8) < torch.randint(4, 9, (batch, 1))).long()
    return {"input_ids": torch.randint(3, 40, (batch, 8)) * mask, "attention_mask": mask}


def picture(batch: int, size: int = 16) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def larger_picture(batch: int) -> dict[str, Any]:
    return picture(batch, 32)


def two_texts(batch: int) -> dict[str, Any]:
    return {**ids(batch), "decoder_input_ids": torch.randint(3, 40, (batch, 6))}


def text_and_picture(batch: int) -> dict[str, Any]:
    return {**ids(batch), **picture(batch)}


def sound(batch: int) -> dict[str, Any]:
    return {
        "input_features": torch.randn(batch, 8, 20),
        "decoder_input_ids": torch.randint(3, 40, (batch, 6)),
    }


def wave(batch: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 200)}


_CLIP_PARTS = {
    "text_config": {**SIZES, **TEXT, "bos_token_id": 1, "eos_token_id": 2},
    "vision_config": {**SIZES, **PICTURE},
    "projection_dim": 16,
}
# model type of transformers -> (inputs, configuration)
HUGGING_FACE: dict[str, tuple[Inputs, dict[str, Any]]] = {
    "rwkv": (
        ids,
        {
            "vocab_size": 40,
            "context_length": 16,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "attention_hidden_size": 16,
            "intermediate_size": 32,
            "rescale_every": 1,
            "use_cache": False,
        },
    ),
    "bert": (padded, {**SIZES, **TEXT}),
    "roberta": (padded, {**SIZES, **TEXT}),
    "albert": (padded, {**SIZES, **TEXT, "embedding_size": 8}),
    "electra": (padded, {**SIZES, **TEXT, "embedding_size": 8}),
    "distilbert": (
        padded,
        {
            "vocab_size": 40,
            "max_position_embeddings": 32,
            "dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 32,
        },
    ),
    "mobilebert": (
        padded,
        {**SIZES, **TEXT, "embedding_size": 8, "intra_bottleneck_size": 8, "num_feedforward_networks": 1},
    ),
    "mpnet": (padded, {**SIZES, **TEXT}),
    "deberta-v2": (padded, {**SIZES, **TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "squeezebert": (
        padded,
        {
            **SIZES,
            **TEXT,
            "embedding_size": 16,
            "q_groups": 1,
            "k_groups": 1,
            "v_groups": 1,
            "post_attention_groups": 1,
            "intermediate_groups": 1,
            "output_groups": 1,
        },
    ),
    "nystromformer": (padded, {**SIZES, **TEXT, "num_landmarks": 8, "segment_means_seq_len": 8}),
    "fnet": (ids, {**SIZES, **TEXT}),
    "xlnet": (
        padded,
        {
            "vocab_size": 40,
            "d_model": 16,
            "n_layer": 2,
            "n_head": 2,
            "d_inner": 32,
            "use_mems_eval": False,
            "use_mems_train": False,
        },
    ),
    "esm": (padded, {**SIZES, **TEXT, "position_embedding_type": "rotary", "mask_token_id": 1}),
    "longformer": (padded, {**SIZES, **TEXT, "attention_window": 4}),
    "gpt2": (ids, OLD_GPT),
    "gptj": (ids, {**OLD_GPT, "rotary_dim": 4}),
    "gpt_neo": (
        ids,
        {
            **SIZES,
            **TEXT,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
    ),
    "gpt_neox": (ids, {**SIZES, **TEXT}),
    "codegen": (ids, {**OLD_GPT, "rotary_dim": 4, "n_head": 4}),
    "opt": (padded, {**SIZES, **TEXT, "ffn_dim": 32, "word_embed_proj_dim": 16}),
    "bloom": (padded, {"vocab_size": 40, "hidden_size": 16, "n_layer": 2, "n_head": 2, "use_cache": False}),
    "mpt": (
        padded,
        {"vocab_size": 40, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 32, "use_cache": False},
    ),
    "falcon": (ids, {**SIZES, **TEXT}),
    "llama": (padded, GATED),
    "mistral": (ids, {**GATED, "sliding_window": 4}),
    "mixtral": (
        ids,
        {**GATED, "num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"},
    ),
    "qwen2": (ids, GATED),
    "qwen3": (padded, GATED),
    "qwen3_moe": (
        ids,
        {
            **GATED,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "experts_implementation": "eager",
        },
    ),
    "gemma": (ids, GATED),
    "gemma2": (ids, {**GATED, "sliding_window": 4}),
    "phi": (ids, {**SIZES, **TEXT}),
    "phi3": (ids, {**GATED, "bos_token_id": 1, "eos_token_id": 2}),
    "olmo2": (ids, GATED),
    "stablelm": (ids, GATED),
    "starcoder2": (ids, GATED),
    "granite": (ids, GATED),
    "persimmon": (ids, {**SIZES, **TEXT}),
    "mamba": (
        ids,
        {
            "vocab_size": 40,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "state_size": 4,
            "time_step_rank": 2,
            "use_cache": False,
        },
    ),
    "mamba2": (
        ids,
        {
            "vocab_size": 40,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "state_size": 4,
            "num_heads": 4,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 4,
            "use_cache": False,
        },
    ),
    "t5": (
        two_texts,
        {
            "vocab_size": 40,
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 2,
            "use_cache": False,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": (two_texts, BART),
    "pegasus": (two_texts, BART),
    "marian": (two_texts, BART),
    "xglm": (
        ids,
        {
            "vocab_size": 40,
            "d_model": 16,
            "num_layers": 2,
            "attention_heads": 2,
            "ffn_dim": 32,
            "max_position_embeddings": 32,
            "use_cache": False,
        },
    ),
    "whisper": (sound, {**BART, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 10}),
    "wav2vec2": (
        wave,
        {
            **SIZES,
            "vocab_size": 40,
            "conv_dim": (8, 8),
            "conv_kernel": (4, 3),
            "conv_stride": (4, 2),
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "apply_spec_augment": False,
            "num_feat_extract_layers": 2,
            "feat_extract_norm": "layer",
        },
    ),
    "vit": (picture, {**SIZES, **PICTURE}),
    "deit": (picture, {**SIZES, **PICTURE}),
    "beit": (picture, {**SIZES, **PICTURE, "use_relative_position_bias": True}),
    "dinov2": (picture, {**SIZES, **PICTURE}),
    "swin": (
        picture,
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
    ),
    "swinv2": (
        picture,
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
    ),
    "convnext": (larger_picture, {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}),
    "convnextv2": (larger_picture, {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}),
    "resnet": (
        larger_picture,
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    ),
    "regnet": (
        larger_picture,
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
    ),
    "segformer": (
        larger_picture,
        {
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 8,
        },
    ),
    "mobilevit": (
        larger_picture,
        {
            "image_size": 32,
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 8],
            "num_attention_heads": 2,
        },
    ),
    "clip": (text_and_picture, _CLIP_PARTS),
    "siglip": (text_and_picture, _CLIP_PARTS),
}


def make_hugging_face(name: str) -> tuple[Maker, Inputs]:
    """The same for a model type of transformers."""
    if importlib.util.find_spec("transformers") is None:
        raise ModuleNotFoundError("transformers is not installed")
    _declare_torchvision_ops()  # transformers imports it where it is installed
    import transformers

    inputs, options = HUGGING_FACE[name]
    config = transformers.AutoConfig.for_model(name, **options)
    for part in (config, getattr(config, "text_config", None), getattr(config, "vision_config", None)):
        for key, value in vars(part).items() if part is not None else ():
            if "drop" in key and isinstance(value, float):
                setattr(part, key, 0.0)
    return lambda: transformers.AutoModel.from_config(config), inputs


__all__ = ["HUGGING_FACE", "TIMM", "make_hugging_face", "make_timm"]
