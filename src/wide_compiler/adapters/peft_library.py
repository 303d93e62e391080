"""Adapters implemented by PEFT."""

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import AlignmentError, ArgumentError, UnsupportedError
from .number_buffers import LaneDropout, NumberBuffers

NAME = "default"  # name of the single adapter in each lane's model
# Initialisations that do not change the base's weights; others (pissa, olora, ...) do.
KEEPS_BASE = (True, False, "gaussian", "orthogonal", "eva")


class PeftLibrary:
    """Interface to PEFT."""

    def inject(self, base: nn.Module, config: Any) -> nn.Module:
        """Add a newly initialised adapter to `base`, in place."""
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
        """Return a model whose adapter fits those of all `models`, with scalings and rates as buffers."""
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
            layer.scaling = NumberBuffers({NAME: layer.scaling[NAME]}, weight)
            if len(rates) > 1:
                layer.lora_dropout[NAME] = LaneDropout(0.0, weight)
        return model

    def numbers(self, model: nn.Module) -> dict[str, float]:
        """Return this model's numbers by path of the buffer in the model of `room_for`."""
        found = {}
        for path, layer in lora_layers(model).items():
            found[f"{path}.scaling.{NAME}"] = float(layer.scaling[NAME])
            found[f"{path}.lora_dropout.{NAME}.p"] = _rate(layer)
        return found

    def ranks(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        """Return module path -> (rank, maximum rank of the module's weight)."""
        layers = lora_layers(model).items()
        return {
            path: (layer.r[NAME], min(layer.get_base_layer().weight.flatten(1).shape))
            for path, layer in layers
        }

    def layers(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return the outermost modules that PEFT inserted, by path."""
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        found: dict[str, Any] = {}
        for path, module in model.named_modules():
            inner = any(path.startswith(f"{outer}.") for outer in found)
            if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)) and not inner:
                found[path] = module
        return found

    def base_of(self, model: nn.Module) -> nn.Module:
        """Remove the adapters and return the base. Consumes the model."""
        for path, layer in self.layers(model).items():
            if hasattr(layer, "original_module"):  # `unload` would keep the trained module
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, layer.original_module)
        return model.unload()  # type: ignore[operator]

    def adapter_states(self, model: nn.Module) -> dict[str, tuple[Any, dict[str, torch.Tensor]]]:
        """Return adapter name -> (config, tensors under the keys of PEFT's files)."""
        import peft

        return {
            name: (config, peft.get_peft_model_state_dict(model, None, name, save_embedding_layers=False))
            for name, config in model.peft_config.items()  # type: ignore[union-attr,operator]
        }

    def load_state(self, model: nn.Module, state: dict[str, torch.Tensor], what: str) -> None:
        """Load tensors under the keys of PEFT's files into a model of `inject`.

        Embeddings of the base in a file are not loaded, since all lanes share them; they must be equal.
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
        """Merge the adapter into the base's weights and return the base. Consumes the model."""
        return model.merge_and_unload()  # type: ignore[operator]


def lora_layers(model: nn.Module) -> dict[str, Any]:
    from peft.tuners.lora import LoraLayer

    return {path: m for path, m in model.named_modules() if isinstance(m, LoraLayer) and NAME in m.r}


def _rate(layer: Any) -> float:
    return float(getattr(layer.lora_dropout[NAME], "p", 0.0))  # nn.Identity if the rate is 0


def _inside(path: str) -> str:
    """Return a module's path in the base, as PEFT's patterns expect it."""
    return path.removeprefix("base_model.model.")


def _check_alike(layers: list[dict[str, Any]], union: dict[str, Any]) -> None:
    """Raise `AlignmentError` if only some lanes use DoRA, whose norms cannot be padded with zeros."""
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
