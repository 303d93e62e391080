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
from .library import NAME, AdapterLibrary
from .lora_layer import LoraLayer

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
        self.peft_config = {NAME: config}
        self.base_model: Any = nn.Module()
        self.base_model.model = base
        base.requires_grad_(False)
        found = [(path, module) for path, module in base.named_modules() if config.targets(path)]
        if not found:
            there = ", ".join(path for path, module in base.named_modules() if hasattr(module, "weight"))
            raise ArgumentError(
                f"no module of the base is one of target_modules={config.target_modules!r}; it has {there}"
            )
        for path, module in found:
            parent, _, name = path.rpartition(".")
            layer = LoraLayer(module, *config.of_module(path), config.lora_dropout, path)
            setattr(base.get_submodule(parent), name, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model.model(*args, **kwargs)

    def get_base_model(self) -> nn.Module:
        return self.base_model.model


class LoraLibrary(AdapterLibrary):
    """The interface of `PeftLibrary` for `LoraModel`."""

    def inject(self, base: nn.Module, config: LoraConfig) -> nn.Module:
        return LoraModel(base, copy.deepcopy(config))

    def lora_layers(self, model: nn.Module) -> dict[str, Any]:
        return {path: m for path, m in model.named_modules() if isinstance(m, LoraLayer)}

    def layers(self, model: nn.Module) -> dict[str, nn.Module]:
        return self.lora_layers(model)

    def base_of(self, model: nn.Module) -> nn.Module:
        for path, layer in self.lora_layers(model).items():
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, layer.base_layer)
        assert isinstance(model, LoraModel)
        return model.get_base_model()

    def adapter_states(self, model: nn.Module) -> dict[str, tuple[LoraConfig, dict[str, Tensor]]]:
        return {NAME: (self.config_of(model), _state(model))}

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
            raise ArgumentError(f"{folder} is not plain LoRA; install the extra 'peft' and use its configs")
        names = LoraConfig.__dataclass_fields__
        model = LoraModel(base, LoraConfig(**{k: v for k, v in saved.items() if k in names}))
        self.load_state(model, load_file(folder / FILES[0]), str(folder))
        return model

    def merge(self, model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for layer in self.lora_layers(model).values():
                layer.base_layer.weight.data = layer.base_layer.weight + layer.delta()
        return self.base_of(model)


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Return the adapter's tensors under the keys of PEFT's files, which omit the adapter name."""
    return {path.replace(".default", ""): p for path, p in model.named_parameters() if ".lora_" in path}


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tuple(tensor.shape))
