"""The architectures of `sweep.py`: timm, torchvision, Hugging Face and the zoo of the tests.

Random weights, small configurations and pictures. A maker gives a fresh model, `inputs(batch)` gives (args,
kwargs) for it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from zoo import CASES

Maker = Callable[[], nn.Module]
Keywords = Callable[[int], dict[str, Any]]
Inputs = Callable[[int], tuple[tuple, dict[str, Any]]]

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

# Registered names that are small enough once repeated blocks are cut to two, by size of the picture.
_SMALL = """
lambda_resnet26t eca_resnext26ts gcresnext26ts gernet_s
mobileone_s0 repvgg_a0 regnetz_b16 test_byobnet convnext_femto_ols convnextv2_atto cs3darknet_s
cs3darknet_focus_s darknet17 cspnext_tiny densenet121 dpn68 efficientnet_b0
efficientnet_lite0 efficientnet_es efficientnetv2_rw_t mnasnet_small mobilenetv2_035 fbnetc_100 spnasnet_100
mixnet_s tinynet_e mobilenetv4_conv_small efficientvit_b0 fasternet_t0 fastvit_t8 ghostnet_050
ghostnetv2_100 hardcorenas_a hgnetv2_b0 inception_next_atto lcnetv2_small mambaout_femto mobilenetv3_rw
fbnetv3_b mobilevit_xxs mobilevitv2_050 nf_regnet_b0 nf_resnet26 regnetx_002 regnety_002 repghostnet_050
repvit_m0_9 rexnet_100 legacy_seresnet18 legacy_seresnext26_32x4d shvit_s1 starnet_s1 swiftformer_xs
ese_vovnet19b_slim_dw ese_vovnet19b_dw xception41 cpubone_nano lowformer_b0 efficientvim_m1
edgenext_x_small iformer_t
"""
TIMM |= dict.fromkeys(_SMALL.split(), (48, {}))
# The same for those that want larger pictures, or have a size built in.
TIMM |= {
    name: (size, {"img_size": size} if built_in else {})
    for size, built_in, names in (
        (96, False, "inception_v4"),
        (
            64,
            True,
            "visformer_tiny gmlp_ti16_224 resmlp_12_224",
        ),
        (
            64,
            True,
            "mixer_s32_224 deit3_small_patch16_224 vit_relpos_small_patch16_224 vit_tiny_r_s16_p8_224",
        ),
        (64, True, "flexivit_small vit_small_patch16_rope_224 tnt_s_patch16_224 pit_ti_224"),
        (64, True, "test_vit2 test_vit3 test_vit4 levit_conv_128s vit_wee_patch16_reg1_gap_256"),
        (
            128,
            True,
            "coatnet_pico_rw_224 maxvit_pico_rw_256 nest_tiny",
        ),
        (
            64,
            True,
            "xcit_tiny_12_p16_224 vitamin_small_224",
        ),
    )
    for name in names.split()
} | {"csatv2": (128, {}), "efficientformer_l1": (224, {})}
TIMM |= dict.fromkeys(("dla46_c", "dla60x_c", "hrnet_w18_small"), (64, {}))
_DIMS = (8, 16, 16, 32)
_ONE = (1, 1, 1, 1)
TIMM |= {
    "gcvit.GlobalContextVit": (
        64,
        {
            "img_size": 64,
            "embed_dim": 8,
            "depths": _ONE,
            "num_heads": (1, 2, 2, 4),
            "window_ratio": (16, 16, 32, 32),
        },
    ),
    "coat_lite_tiny": (64, {"img_size": 64, "embed_dims": _DIMS, "serial_depths": _ONE}),
    "sequencer2d_s": (
        64,
        {"img_size": 64, "embed_dims": _DIMS, "hidden_sizes": (4, 8, 8, 8), "layers": _ONE},
    ),
    "twins_pcpvt_small": (
        64,
        {"img_size": 64, "embed_dims": _DIMS, "depths": _ONE, "num_heads": (1, 2, 2, 4)},
    ),
    "swinv2_cr_tiny_224": (64, {"img_size": 64, "embed_dim": 12, "depths": (1, 1), "num_heads": (2, 2)}),
    "resnetv2_50x1_bit": (48, {"channels": (128, 128, 256, 256)}),
    "hiera_tiny_224": (64, {"img_size": (64, 64), "embed_dim": 16, "stages": _ONE}),
    "samvit_base_patch16_224": (
        64,
        {
            "img_size": 64,
            "embed_dim": 24,
            "depth": 2,
            "num_heads": 2,
            "global_attn_indexes": (1,),
            "neck_chans": 16,
        },
    ),
}
_RESNETS = """
resnet18 resnet26d ecaresnet26t seresnext26t_32x4d resnetblur50 resnetrs50 resnetv2_18
res2net50_14w_8s res2next50 resnest14d skresnet18 wide_resnet50_2 seresnet50 resnext50_32x4d
"""
TIMM |= dict.fromkeys(_RESNETS.split(), (48, {"channels": (16, 16, 32, 32)}))
TIMM["resnetaa50"] = (64, {"channels": (16, 16, 32, 32)})
# Families and sizes that came later.
_VIT = {"img_size": 64, "embed_dim": 24, "depth": 2, "num_heads": 2}
TIMM |= {
    "nasnetalarge": (64, {"num_features": 96, "stem_size": 8}),
    "rdnet_tiny": (64, {}),
    "selecsls42": (64, {}),
    "legacy_xception": (64, {}),
    "tresnet_m": (64, {}),
    "nextvit_small": (64, {}),
    "naflexvit_base_patch16_gap": (64, {"embed_dim": 24, "depth": 2, "num_heads": 2}),
    "hieradet_small": (64, {"stages": _ONE, "embed_dim": 16, "num_heads": 1}),
    "qwen3_vit_88m": (64, _VIT),
    "deepseek_vit_412m": (56, {**_VIT, "img_size": 56}),
    "gemma4_vit_167m": (64, _VIT),
    "vit_base_patch16_clip_224": (64, _VIT),
    "vit_small_patch14_dinov2": (56, {**_VIT, "img_size": 56}),
    "vit_small_patch16_dinov3": (64, _VIT),
    "eva02_base_patch14_448": (56, {**_VIT, "img_size": 56}),
    "convnextv2_femto": (64, {"depths": _ONE, "dims": _DIMS}),
    "mobilenetv4_hybrid_medium": (64, {}),
    "efficientnet_cc_b0_4e": (64, {}),
    "regnetv_040": (64, {}),
    "botnet26t_256": (64, {"img_size": 64}),
    "sebotnet33ts_256": (64, {"img_size": 64}),
    "mobileone_s1": (64, {}),
    "vovnet39a": (64, {}),
    "selecsls60b": (64, {}),
    "hgnet_tiny": (64, {}),
}

VIDEO = {"mc3_18", "r3d_18", "r2plus1d_18"}
_REGISTERED = """
resnet18 densenet121 googlenet inception_v3 mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_x_400mf
regnet_y_400mf shufflenet_v2_x0_5 squeezenet1_0 squeezenet1_1 efficientnet_b0 efficientnet_v2_s
deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large mc3_18 raft_small
r3d_18 r2plus1d_18 resnet34 shufflenet_v2_x1_0 mnasnet1_0 mobilenet_v3_large convnext_tiny fcn_resnet50
"""
TORCHVISION: dict[str, tuple[int, dict[str, Any]]] = dict.fromkeys(_REGISTERED.split(), (48, {}))
_SWIN = {
    "patch_size": [4, 4],
    "embed_dim": 12,
    "depths": [2, 1],
    "num_heads": [2, 2],
    "window_size": [4, 4],
    "num_classes": 5,
}
TORCHVISION |= {
    "inception_v3": (128, {"aux_logits": False}),  # the auxiliary head wants 299
    "raft_small": (128, {}),
    "vision_transformer.VisionTransformer": (
        32,
        {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 24, "mlp_dim": 32},
    ),
    "swin_transformer.SwinTransformer": (32, _SWIN),
    "maxvit.MaxVit": (
        64,
        {
            "input_size": (64, 64),
            "stem_channels": 8,
            "block_channels": [8, 16],
            "block_layers": [1, 1],
            "head_dim": 8,
            "stochastic_depth_prob": 0.0,
            "partition_size": 4,
        },
    ),
}


def make_timm(name: str) -> tuple[Maker, Inputs]:
    """A maker of fresh models of this name, and one of inputs by batch size."""
    _import_torchvision()
    import timm

    size, options = TIMM[name]

    def inputs(batch: int) -> tuple[tuple, dict[str, Any]]:
        return (torch.randn(batch, 3, size, size),), {}

    if "." in name:
        file, _, kind = name.partition(".")
        made = getattr(importlib.import_module(f"timm.models.{file}"), kind)
        return lambda: made(num_classes=5, **options), inputs

    def make() -> nn.Module:
        return timm.create_model(name, num_classes=5, **options)

    if {"depth", "depths", "layers", "serial_depths"} & options.keys():
        return make, inputs
    return shortened(make, inputs), inputs


def make_torchvision(name: str) -> tuple[Maker, Inputs]:
    """The same for a registered model of torchvision."""
    _import_torchvision()
    import torchvision

    size, options = TORCHVISION[name]
    weights = {"weights": None, "weights_backbone": None} if name.startswith(("deep", "fcn", "lra")) else {}

    def inputs(batch: int) -> tuple[tuple, dict[str, Any]]:
        frames = (8,) if name in VIDEO else ()
        one = torch.randn(batch, 3, *frames, size, size)
        return ((one, torch.randn_like(one)) if name == "raft_small" else (one,)), {}

    if "." in name:
        file, _, kind = name.partition(".")
        made = getattr(importlib.import_module(f"torchvision.models.{file}"), kind)
        return lambda: made(**options), inputs

    def make() -> nn.Module:
        return torchvision.models.get_model(name, **weights, **options)

    return shortened(make, inputs), inputs


def shortened(make: Maker, inputs: Inputs) -> Maker:
    """A maker of `cut` models, where they still run (a block may take the outputs of all before it)."""
    model = cut(make()).eval()
    try:
        with torch.no_grad():
            model(*inputs(2)[0])
    except RuntimeError:
        return make
    return lambda: cut(make())


def cut(model: nn.Module) -> nn.Module:
    """Of more than two alike blocks in a row (one class, the same shapes) two stay: the deep ones add nothing
    but time. In plain containers only, whose forward does not count them."""
    for module in model.modules():
        if type(module) not in (nn.Sequential, nn.ModuleList):
            continue
        for i in reversed(range(2, len(module))):
            if _look(module[i]) == _look(module[i - 1]) == _look(module[i - 2]):
                del module[i]
    return model


def _look(module: nn.Module) -> tuple:
    shapes = [tuple(t.shape) for t in (*module.parameters(), *module.buffers())]
    return [type(m) for m in module.modules()], shapes


_declared: list[torch.library.Library] = []


def _import_torchvision() -> None:
    """A torchvision whose compiled part does not load (beside a CPU build of torch, say) imports if its ops
    have names; timm and transformers import it where it is installed."""
    try:
        import torchvision
    except ModuleNotFoundError:
        return
    except RuntimeError:  # operator torchvision::nms does not exist
        _declared.append(torch.library.Library("torchvision", "DEF"))
        for op in ("nms", "qnms"):
            _declared[0].define(f"{op}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        import torchvision  # noqa: F401


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {"vocab_size": 40, "max_position_embeddings": 32, "use_cache": False, "pad_token_id": 0}
# Grouped products take no double precision.
MOE = {"experts_implementation": "batched_mm", "num_experts_per_tok": 2}
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


def large_picture(batch: int) -> dict[str, Any]:
    return picture(batch, 96)  # a norm over the last maps of four smaller ones would magnify rounding


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


def mono_wave(batch: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 1, 64)}


def series(batch: int) -> dict[str, Any]:
    return {"past_values": torch.randn(batch, 16, 2)}


_T5 = {
    "vocab_size": 40,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "use_cache": False,
    "decoder_start_token_id": 0,
}
_WAVE = {
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
}
_CLIP_PARTS = {
    "text_config": {**SIZES, **TEXT, "bos_token_id": 1, "eos_token_id": 2},
    "vision_config": {**SIZES, **PICTURE},
    "projection_dim": 16,
}
# model type of transformers -> (inputs, configuration)
HUGGING_FACE: dict[str, tuple[Keywords, dict[str, Any]]] = {
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
        {**GATED, **MOE, "num_local_experts": 4},
    ),
    "qwen2": (ids, GATED),
    "qwen3": (padded, GATED),
    "qwen3_moe": (
        ids,
        {
            **GATED,
            **MOE,
            "num_experts": 4,
            "moe_intermediate_size": 16,
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
    "t5": (two_texts, _T5),
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
    "wav2vec2": (wave, _WAVE),
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
    "switch_transformers": (
        two_texts,
        {**_T5, "num_experts": 2, "num_sparse_encoder_layers": 1},
    ),
    "umt5": (two_texts, _T5),
    "longt5": (two_texts, {**_T5, "local_radius": 3}),
    "encodec": (
        mono_wave,
        {
            "num_filters": 4,
            "hidden_size": 16,
            "codebook_size": 16,
            "codebook_dim": 16,
            "upsampling_ratios": [4, 2],
        },
    ),
    "big_bird": (padded, {**SIZES, **TEXT, "block_size": 2, "num_random_blocks": 1}),
    "jamba": (
        ids,
        {
            **GATED,
            **MOE,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "mamba_d_state": 4,
            "mamba_dt_rank": 2,
            "use_mamba_kernels": False,
        },
    ),
    "deepseek_v3": (
        ids,
        {
            **GATED,
            **MOE,
            "n_routed_experts": 4,
            "moe_intermediate_size": 16,
            "n_group": 2,
            "topk_group": 1,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 2,
            "head_dim": 4,
        },
    ),
    "qwen2_moe": (
        ids,
        {
            **GATED,
            **MOE,
            "num_experts": 4,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "olmoe": (ids, {**GATED, **MOE, "num_experts": 4}),
    "gpt_oss": (ids, {**GATED, **MOE, "num_local_experts": 4, "sliding_window": 4}),
    "hubert": (wave, _WAVE),
    "wavlm": (wave, _WAVE),
    "roformer": (padded, {**SIZES, **TEXT, "embedding_size": 16}),
    "convbert": (padded, {**SIZES, **TEXT, "embedding_size": 16, "conv_kernel_size": 3}),
    "ibert": (padded, {**SIZES, **TEXT}),
    "rembert": (padded, {**SIZES, **TEXT, "input_embedding_size": 8, "output_embedding_size": 8}),
    "funnel": (
        ids,
        {
            "vocab_size": 40,
            "d_model": 16,
            "n_head": 2,
            "d_head": 8,
            "d_inner": 32,
            "block_sizes": [1, 1],
            "block_repeats": [1, 1],
            "num_decoder_layers": 1,
            "architectures": ["FunnelModel"],
        },
    ),
    "modernbert": (padded, {**SIZES, **TEXT, "local_attention": 4, "global_attn_every_n_layers": 2}),
    "recurrent_gemma": (ids, {**GATED, "lru_width": 16, "attention_window_size": 4}),
    "falcon_mamba": (
        ids,
        {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "use_cache": False},
    ),
    "vit_msn": (picture, {**SIZES, **PICTURE}),
    "yolos": (picture, {**SIZES, "image_size": [16, 16], "patch_size": 4, "num_detection_tokens": 3}),
    "poolformer": (larger_picture, {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}),
    "mobilenet_v2": (large_picture, {"depth_multiplier": 0.25, "min_depth": 8}),
    "patchtst": (
        series,
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 32,
        },
    ),
    "clip": (text_and_picture, _CLIP_PARTS),
    "siglip": (text_and_picture, _CLIP_PARTS),
}


def make_hugging_face(name: str) -> tuple[Maker, Inputs]:
    """The same for a model type of transformers."""
    _import_torchvision()
    import transformers

    keywords, options = HUGGING_FACE[name]
    config = transformers.AutoConfig.for_model(name, **options)
    for part in (config, getattr(config, "text_config", None), getattr(config, "vision_config", None)):
        for key, value in vars(part).items() if part is not None else ():
            if "drop" in key and isinstance(value, float):
                setattr(part, key, 0.0)
    return lambda: transformers.AutoModel.from_config(config), lambda batch: ((), keywords(batch))


def make_zoo(name: str) -> tuple[Maker, Inputs]:
    """The same for an architecture that the tests have."""
    return CASES[name].make, CASES[name].inputs


# library -> (the module that offers it, names, maker); the order of the sweep
MAKERS = {
    "hf": ("transformers", HUGGING_FACE, make_hugging_face),
    "timm": ("timm", TIMM, make_timm),
    "torchvision": ("torchvision", TORCHVISION, make_torchvision),
    "zoo": ("zoo", CASES, make_zoo),
}


def make(name: str) -> tuple[Maker, Inputs]:
    """A maker of fresh models of 'library:model', and one of inputs by batch size."""
    library, _, model = name.partition(":")
    return MAKERS[library][2](model)


def names() -> list[str]:
    """'library:model' of all, the zoo last."""
    return [f"{library}:{model}" for library, (_, models, _) in MAKERS.items() for model in models]


def installed(name: str) -> bool:
    return importlib.util.find_spec(MAKERS[name.partition(":")[0]][0]) is not None


__all__ = ["CASES", "installed", "make", "names"]
