"""LoRA without PEFT, for linear, embedding and convolution layers, with files that PEFT can read."""

import copy
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..errors import ArgumentError
from .lora_layer import LoraLayer
from .number_buffers import LaneDropout, NumberBuffers

PREFIX = "base_model.model."
FILES = ("adapter_model.safetensors", "adapter_config.json")


@dataclass
class LoraConfig:
    """Subset of `peft.LoraConfig` for plain LoRA, with the same meaning.

    `target_modules`: suffixes of module paths, or one regular expression for whole paths.
    """

    target_modules: list[str] | str
    r: int = 8
    lora_alpha: float = 8
    lora_dropout: float = 0.0
    use_rslora: bool = False
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)

    def targets(self, path: str) -> bool:
        if isinstance(self.target_modules, str):
            return re.fullmatch(self.target_modules, path) is not None
        return any(path == end or path.endswith(f".{end}") for end in self.target_modules)

    def of_module(self, path: str) -> tuple[int, float]:
        """Return rank and scaling of the adapter of one module."""
        rank, alpha = self.r, self.lora_alpha
        for pattern, value in self.rank_pattern.items():
            rank = value if re.match(rf"(.*\.)?({pattern})$", path) else rank
        for pattern, number in self.alpha_pattern.items():
            alpha = number if re.match(rf"(.*\.)?({pattern})$", path) else alpha
        if rank < 1:
            raise ArgumentError(f"{path}: rank must be positive, got {rank}")
        return rank, alpha / (rank**0.5 if self.use_rslora else rank)


class LoraModel(nn.Module):
    """A base model with LoRA layers, under the paths that PEFT uses."""

    def __init__(self, base: nn.Module, config: LoraConfig):
        super().__init__()
        self.peft_config = {"default": config}
        self.base_model: Any = nn.Module()
        self.base_model.model = base
        base.requires_grad_(False)
        found = [(path, module) for path, module in base.named_modules() if config.targets(path)]
        if not found:
            raise ArgumentError(f"Target modules {config.target_modules!r} not found in the base model.")
        for path, module in found:
            parent, _, name = path.rpartition(".")
            layer = LoraLayer(module, *config.of_module(path), config.lora_dropout, path)
            setattr(base.get_submodule(parent), name, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model.model(*args, **kwargs)

    def get_base_model(self) -> nn.Module:
        return self.base_model.model


class LoraLibrary:
    """The interface of `PeftLibrary` for `LoraModel`."""

    def inject(self, base: nn.Module, config: LoraConfig) -> nn.Module:
        return LoraModel(base, copy.deepcopy(config))

    def config_of(self, model: nn.Module) -> LoraConfig:
        assert isinstance(model, LoraModel)
        return model.peft_config["default"]

    def room_for(self, base: nn.Module, models: list[nn.Module], max_rank: int | None) -> nn.Module:
        layers = [_layers(model) for model in models]
        paths = list(dict.fromkeys(path for lane in layers for path in lane))
        inside = {path: path.removeprefix(PREFIX) for path in paths}
        ranks = {
            inside[p]: max([*(lane[p].rank for lane in layers if p in lane), max_rank or 0]) for p in paths
        }
        pattern = {f"^{re.escape(path)}": rank for path, rank in ranks.items()}
        config = LoraConfig("|".join(map(re.escape, ranks)), rank_pattern=pattern)
        model = LoraModel(base, config)
        rates = {layer.lora_dropout["default"].p for lane in layers for layer in lane.values()}
        for layer in _layers(model).values():
            weight = layer.base_layer.weight
            layer.scaling = NumberBuffers({"default": 1.0}, weight)
            one_rate = len(rates) == 1
            layer.lora_dropout["default"] = nn.Dropout(*rates) if one_rate else LaneDropout(0.0, weight)
        return model

    def numbers(self, model: nn.Module) -> dict[str, float]:
        found = {}
        for path, layer in _layers(model).items():
            found[f"{path}.scaling.default"] = layer.scaling["default"]
            found[f"{path}.lora_dropout.default.p"] = layer.lora_dropout["default"].p
        return found

    def ranks(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        layers = _layers(model).items()
        return {path: (layer.rank, min(layer.base_layer.weight.flatten(1).shape)) for path, layer in layers}

    def layers(self, model: nn.Module) -> dict[str, nn.Module]:
        return dict(_layers(model))

    def base_of(self, model: nn.Module) -> nn.Module:
        for path, layer in _layers(model).items():
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, layer.base_layer)
        assert isinstance(model, LoraModel)
        return model.get_base_model()

    def adapter_states(self, model: nn.Module) -> dict[str, tuple[LoraConfig, dict[str, Tensor]]]:
        return {"default": (self.config_of(model), _state(model))}

    def load_state(self, model: nn.Module, state: dict[str, Tensor], what: str) -> None:
        expected = _state(model)
        for key in {**expected, **state}:
            if key not in state or key not in expected or state[key].shape != expected[key].shape:
                got, want = state.get(key), expected.get(key)
                raise ArgumentError(f"{what}: {key} is {_shape(got)}, expected {_shape(want)}")
        with torch.no_grad():
            for key, tensor in expected.items():
                tensor.copy_(state[key])

    def save(self, model: nn.Module, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = {"peft_type": "LORA", "bias": "none", "task_type": None, "inference_mode": True}
        save_file({k: t.detach().contiguous() for k, t in _state(model).items()}, folder / FILES[0])
        (folder / FILES[1]).write_text(json.dumps({**config, **asdict(self.config_of(model))}, indent=2))

    def load(self, base: nn.Module, folder: Path) -> nn.Module:
        saved = json.loads((folder / FILES[1]).read_text())
        if saved.get("peft_type") != "LORA" or saved.get("use_dora") or saved.get("modules_to_save"):
            raise ArgumentError(f"{folder} is no plain LoRA; install the extra 'peft' and use its configs")
        names = LoraConfig.__dataclass_fields__
        model = LoraModel(base, LoraConfig(**{k: v for k, v in saved.items() if k in names}))
        self.load_state(model, load_file(folder / FILES[0]), str(folder))
        return model

    def merge(self, model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for layer in _layers(model).values():
                layer.base_layer.weight.data = layer.base_layer.weight + layer.delta()
        return self.base_of(model)


def _layers(model: nn.Module) -> dict[str, Any]:
    return {path: m for path, m in model.named_modules() if isinstance(m, LoraLayer)}


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Return the adapter's tensors under the keys of PEFT's files, which omit the adapter name."""
    return {path.replace(".default", ""): p for path, p in model.named_parameters() if ".lora_" in path}


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tuple(tensor.shape))
