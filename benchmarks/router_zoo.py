"""Models with branches for `router_models.py`, each with the groups that a reader of its code would list.

Weights are random and sizes small. The image models are those of timm and torchvision, the language models
those of Hugging Face transformers, none of them changed. Packages that are installed for this table alone may
lie in the folder that EXTRA_PACKAGES names.
"""

import itertools
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

if "EXTRA_PACKAGES" in os.environ:
    sys.path.append(os.environ["EXTRA_PACKAGES"])

if torch.version.cuda is None:
    # C++ ops that torchvision's wheel lacks beside a CPU build of torch.
    VISION = torch.library.Library("torchvision", "DEF")
    VISION.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    VISION.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@dataclass
class Case:
    """A model, what it is called with, and its alike branches as a person would list them.

    Attributes:
        make: gives (model, positional arguments, keyword arguments).
        groups: one pattern for each kind of group. Paths that it matches are one group for each text that its
            part `(?P<of>...)` matches.
        note: what else there is to say.
        draws: does it draw random numbers in training?
    """

    make: Callable[[], tuple[nn.Module, tuple, dict]]
    groups: tuple[str, ...]
    note: str = ""
    draws: bool = False

    def listed(self, model: nn.Module) -> list[frozenset[str]]:
        """The groups of paths that a person would list."""
        found: dict[Any, set[str]] = {}
        for path, _ in model.named_modules():
            for pattern in self.groups:
                match = re.fullmatch(pattern, path)
                if match:
                    found.setdefault((pattern, match.groupdict().get("of")), set()).add(path)
        return [frozenset(paths) for paths in found.values() if len(paths) > 1]


def images(name: str) -> Callable[[], tuple[nn.Module, tuple, dict]]:
    """A model of timm, or GoogLeNet of torchvision, and two pictures."""

    def make() -> tuple[nn.Module, tuple, dict]:
        x = torch.randn(2, 3, 64, 64)
        if name == "googlenet":
            import torchvision

            options = {"aux_logits": False, "init_weights": False, "num_classes": 10}
            return torchvision.models.googlenet(weights=None, **options), (x,), {}
        import timm

        return timm.create_model(name, num_classes=10), (x,), {}

    return make


SMALL = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def tokens(length: int = 16) -> torch.Tensor:
    return torch.randint(0, 100, (2, length))


def mixtral() -> tuple[nn.Module, tuple, dict]:
    from transformers import MixtralConfig, MixtralModel

    model = MixtralModel(MixtralConfig(**SMALL, **HEADS, num_local_experts=8))
    return model, (), {"input_ids": tokens(), "use_cache": False}


def qwen_moe() -> tuple[nn.Module, tuple, dict]:
    from transformers import Qwen2MoeConfig, Qwen2MoeModel

    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    config = Qwen2MoeConfig(**SMALL, **HEADS, **experts, shared_expert_intermediate_size=64)
    return Qwen2MoeModel(config), (), {"input_ids": tokens(), "use_cache": False}


def switch() -> tuple[nn.Module, tuple, dict]:
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    config = SwitchTransformersConfig(
        vocab_size=100,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_heads=4,
        num_experts=16,
        num_layers=2,
        num_decoder_layers=2,
        expert_capacity=16,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        dropout_rate=0.0,
        router_jitter_noise=0.0,
    )
    arguments = {"input_ids": tokens(32), "decoder_input_ids": tokens(32), "use_cache": False}
    return SwitchTransformersForConditionalGeneration(config), (), arguments


def bert() -> tuple[nn.Module, tuple, dict]:
    from transformers import BertConfig, BertModel

    config = BertConfig(**SMALL, num_attention_heads=4, hidden_dropout_prob=0.1)
    return BertModel(config), (), {"input_ids": tokens()}


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class TwoTowers(nn.Module):
    """A user and an item, each through a tower of its own; how well they match."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = mlp(64, 128, 128, 32), mlp(64, 128, 128, 32)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return (self.user(user) * self.item(item)).sum(-1)


class MultiTask(nn.Module):
    """One trunk and a head for each of twelve tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = mlp(64, 128, 64)
        self.heads = nn.ModuleList(mlp(64, 64, 4) for _ in range(12))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = torch.relu(self.trunk(x))
        return [head(x) for head in self.heads]


STACKED = "its experts are stacked parameters already, run as one product"
CASES = {
    "Mixtral": Case(mixtral, (r"(?P<of>.*self_attn)\.[kv]_proj", r"(?P<of>.*)\.experts\.\d+"), STACKED),
    "Qwen2-MoE": Case(
        qwen_moe,
        (
            r"(?P<of>.*self_attn)\.[kv]_proj",
            r"(?P<of>.*shared_expert)\.(gate|up)_proj",
            r"(?P<of>.*)\.experts\.\d+",
        ),
        STACKED,
    ),
    "Switch": Case(
        switch,
        (
            r"(?P<of>.*SelfAttention)\.[qkv]",
            r"(?P<of>.*EncDecAttention)\.[kv]",
            r"(?P<of>.*experts)\.expert_\d+",
        ),
        "experts picked by values: their tokens are filled up and run as lanes",
    ),
    "GoogLeNet": Case(images("googlenet"), (r"(?P<of>inception(3b|4c))\.(branch1|branch2\.0)",)),
    "HRNet-W18": Case(
        images("hrnet_w18"),
        (r"(?P<of>stage4\.\d+\.fuse_layers)\.[23]\.0\.0",),
        "branches have other widths and sizes; only what leads down from the first is alike",
    ),
    "SKNet": Case(images("skresnet18"), (r"(?P<of>.*\.conv1\.paths)\.\d",)),
    "ResNeSt": Case(images("resnest14d"), (), "its splits are one grouped convolution already"),
    "Res2Net": Case(
        images("res2net50_14w_8s"),
        (r"(?P<of>layer\d\.0\.convs)\.\d", r"(?P<of>layer\d\.0\.bns)\.\d"),
        "in other blocks each convolution waits for the one before",
    ),
    "two towers": Case(lambda: (TwoTowers(), (torch.randn(32, 64), torch.randn(32, 64)), {}), ("user|item",)),
    "BERT with dropout": Case(bert, (r"(?P<of>.*\.self)\.(query|key|value)",), draws=True),
    "multi-task": Case(lambda: (MultiTask(), (torch.randn(32, 64),), {}), (r"heads\.\d+",)),
}
