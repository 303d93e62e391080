"""Adapters by PEFT's own modules."""

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import AlignmentError, ArgumentError, UnsupportedError
from .lane_numbers import LaneDropout, LaneNumbers

NAME = "default"  # of the one adapter that each lane's model has
# Initialisations that leave the base's weights as they are; the others (pissa, olora, ...) change them.
KEEPS_BASE = (True, False, "gaussian", "orthogonal", "eva")


class PeftLibrary:
    """What the adapters room needs of PEFT."""

    def inject(self, base: nn.Module, config: Any) -> nn.Module:
        """`base` itself with a newly initialised adapter in it."""
        import peft

        init = getattr(config, "init_lora_weights", True)
        if init not in KEEPS_BASE:
            raise UnsupportedError(
                f"init_lora_weights={init!r} changes the base's weights, which all lanes share; choose one "
                f"of {KEEPS_BASE}"
            )
        if config.is_prompt_learning:
            raise UnsupportedError(
                f"{config.peft_type.value} adds tokens in front of the input instead of adapting modules"
            )
        trunk = {id(p) for p in base.parameters()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = peft.get_peft_model(base, copy.deepcopy(config), NAME)
        trained = [p for p in model.parameters() if p.requires_grad and id(p) in trunk]
        for parameter in trained:
            parameter.requires_grad_(False)
        if trained:
            raise UnsupportedError(
                f"bias={config.bias!r} trains the base's own biases, which all lanes share; use bias='none', "
                f"or modules_to_save for modules of which each lane gets its own"
            )
        return model

    def config_of(self, model: nn.Module, name: str = NAME) -> Any:
        return model.peft_config[name]  # type: ignore[union-attr,index]

    def room_for(self, base: nn.Module, models: list[nn.Module], max_rank: int | None) -> nn.Module:
        """A model whose adapter has room for those of all `models`, and numbers that may differ by lane."""
        config = copy.deepcopy(self.config_of(models[0]))
        layers = [lora_layers(model) for model in models]
        if not any(layers):
            return self.inject(base, config)
        union = {path: layer for lane in reversed(layers) for path, layer in lane.items()}
        _check_alike(layers, union)
        ranks = {p: max([*(lane[p].r[NAME] for lane in layers if p in lane), max_rank or 0]) for p in union}
        config.target_modules = "|".join(re.escape(_inside(path)) for path in union)
        config.rank_pattern = {f"^{re.escape(_inside(path))}": rank for path, rank in ranks.items()}
        config.alpha_pattern = {}
        config.layers_to_transform = config.layers_pattern = config.exclude_modules = None
        model = self.inject(base, config)
        rates = {_rate(layer) for lane in layers for layer in lane.values()}
        for layer in lora_layers(model).values():
            weight = layer.get_base_layer().weight
            layer.scaling = LaneNumbers({NAME: layer.scaling[NAME]}, weight)
            if len(rates) > 1:
                layer.lora_dropout[NAME] = LaneDropout(0.0, weight)
        return model

    def numbers(self, model: nn.Module) -> dict[str, float]:
        """Path of a buffer in the model of `room_for` -> this model's number."""
        found = {}
        for path, layer in lora_layers(model).items():
            found[f"{path}.scaling.{NAME}"] = float(layer.scaling[NAME])
            found[f"{path}.lora_dropout.{NAME}.p"] = _rate(layer)
        return found

    def ranks(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        """Module path -> (rank, largest rank that the module's weight can have)."""
        layers = lora_layers(model).items()
        return {
            path: (layer.r[NAME], min(layer.get_base_layer().weight.flatten(1).shape))
            for path, layer in layers
        }

    def layers(self, model: nn.Module) -> dict[str, nn.Module]:
        """The outermost modules that PEFT put in place of the base's, by path."""
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        found: dict[str, Any] = {}
        for path, module in model.named_modules():
            inner = any(path.startswith(f"{outer}.") for outer in found)
            if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)) and not inner:
                found[path] = module
        return found

    def base_of(self, model: nn.Module) -> nn.Module:
        """The base without its adapters. The model is used up."""
        for path, layer in self.layers(model).items():
            if hasattr(layer, "original_module"):  # `unload` would leave the trained one in its place
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, layer.original_module)
        return model.unload()  # type: ignore[operator]

    def adapter_states(self, model: nn.Module) -> dict[str, tuple[Any, dict[str, torch.Tensor]]]:
        """Adapter name -> its config and its tensors as PEFT's files have them."""
        import peft

        return {
            name: (config, peft.get_peft_model_state_dict(model, None, name, save_embedding_layers=False))
            for name, config in model.peft_config.items()  # type: ignore[union-attr,operator]
        }

    def load_state(self, model: nn.Module, state: dict[str, torch.Tensor], what: str) -> None:
        """Tensors as PEFT's files have them into a model of `inject`.

        A file may have the base's embeddings too, which are not written: all lanes share them.
        """
        import peft

        expected = peft.get_peft_model_state_dict(model, None, NAME, save_embedding_layers=False)
        base = {path.replace(".base_layer", ""): p for path, p in model.named_parameters()}
        for key in [key for key in state if key not in expected and key.replace(".base_layer", "") in base]:
            here = base[key.replace(".base_layer", "")]
            if not torch.equal(here.cpu(), state[key].to("cpu", here.dtype)):
                raise ArgumentError(f"{what} has other numbers for {key} of the base, which all lanes share")
        state = {key: tensor for key, tensor in state.items() if key.replace(".base_layer", "") not in base}
        result: Any = peft.set_peft_model_state_dict(model, state, NAME)
        missing = [key for key in result.missing_keys if f".{NAME}" in key]
        if missing or result.unexpected_keys:
            wrong = missing or result.unexpected_keys
            raise ArgumentError(f"{what} {'lacks' if missing else 'has'} {wrong[0]}, unlike its config says")

    def save(self, model: nn.Module, folder: Path) -> None:
        model.save_pretrained(folder)  # type: ignore[operator]

    def load(self, base: nn.Module, folder: Path) -> nn.Module:
        import peft
        from peft.utils.save_and_load import load_peft_weights

        model = self.inject(base, peft.PeftConfig.from_pretrained(str(folder)))
        self.config_of(model).inference_mode = False
        self.load_state(model, load_peft_weights(str(folder), device="cpu"), str(folder))
        return model

    def merge(self, model: nn.Module) -> nn.Module:
        """The base with the adapter added to its weights. The model is used up."""
        return model.merge_and_unload()  # type: ignore[operator]


def lora_layers(model: nn.Module) -> dict[str, Any]:
    from peft.tuners.lora import LoraLayer

    return {path: m for path, m in model.named_modules() if isinstance(m, LoraLayer) and NAME in m.r}


def _rate(layer: Any) -> float:
    return float(getattr(layer.lora_dropout[NAME], "p", 0.0))  # nn.Identity where it is 0


def _inside(path: str) -> str:
    """A module's path in the base, which PEFT's patterns speak of."""
    return path.removeprefix("base_model.model.")


def _check_alike(layers: list[dict[str, Any]], union: dict[str, Any]) -> None:
    """Kinds of LoRA do not mix: what a lane lacks is filled with zeros, which DoRA's norms are not."""
    for lane, own in enumerate(layers):
        for path, layer in union.items():
            if path in own:
                mine, theirs = own[path].use_dora.get(NAME), layer.use_dora.get(NAME)
                if mine != theirs:
                    raise AlignmentError(
                        f"lane {lane}: {path} has use_dora={mine}, another lane {theirs}; compile lanes with "
                        f"and without DoRA apart"
                    )
            elif layer.use_dora.get(NAME):
                raise AlignmentError(
                    f"lane {lane} does not adapt {path}, another lane does with DoRA; give lanes with DoRA "
                    f"the same target_modules"
                )
