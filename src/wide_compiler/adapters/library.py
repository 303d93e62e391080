"""AdapterLibrary: what LoRA of this package and LoRA of PEFT have in common."""

import copy
import re
from typing import Any

from torch import nn

from ..errors import AlignmentError
from .number_buffers import LaneDropout, NumberBuffers

NAME = "default"  # name of the single adapter in each lane's model
PREFIX = "base_model.model."  # path of the base in a model with adapters


class AdapterLibrary:
    """Adapters of one implementation; LoRA layers have the attributes of PEFT's."""

    def inject(self, base: nn.Module, config: Any) -> nn.Module:
        """Add a newly initialised adapter to `base`, in place, and return the model."""
        raise NotImplementedError

    def lora_layers(self, model: nn.Module) -> dict[str, Any]:
        """Return the LoRA layers of a model, by path."""
        raise NotImplementedError

    def config_of(self, model: nn.Module) -> Any:
        return model.peft_config[NAME]  # type: ignore[union-attr,index]

    def room_for(self, base: nn.Module, models: list[nn.Module], max_rank: int | None) -> nn.Module:
        """Return a model whose adapter fits those of all `models`, with scalings and rates as buffers."""
        config = copy.deepcopy(self.config_of(models[0]))
        layers = [self.lora_layers(model) for model in models]
        if not any(layers):
            return self.inject(base, config)
        union = {path: layer for lane in reversed(layers) for path, layer in lane.items()}
        _check_dora(layers, union)
        ranks = {path.removeprefix(PREFIX): max_rank or 0 for path in union}
        for path, layer in [item for lane in layers for item in lane.items()]:
            inside = path.removeprefix(PREFIX)
            ranks[inside] = max(ranks[inside], layer.r[NAME])
        config.target_modules = "|".join(map(re.escape, ranks))
        config.rank_pattern = {f"^{re.escape(path)}": rank for path, rank in ranks.items()}
        config.alpha_pattern = {}
        for name in ("layers_to_transform", "layers_pattern", "exclude_modules"):
            if hasattr(config, name):
                setattr(config, name, None)
        model = self.inject(base, config)
        rates = {_rate(layer) for lane in layers for layer in lane.values()}
        for layer in self.lora_layers(model).values():
            weight = layer.get_base_layer().weight
            layer.scaling = NumberBuffers({NAME: layer.scaling[NAME]}, weight)
            if len(rates) > 1:
                layer.lora_dropout[NAME] = LaneDropout(0.0, weight)
        return model

    def numbers(self, model: nn.Module) -> dict[str, float]:
        """Return this model's numbers by path of the buffer in the model of `room_for`."""
        found = {}
        for path, layer in self.lora_layers(model).items():
            found[f"{path}.scaling.{NAME}"] = float(layer.scaling[NAME])
            found[f"{path}.lora_dropout.{NAME}.p"] = _rate(layer)
        return found

    def ranks(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        """Return module path -> (rank, maximum rank of the module's weight)."""
        layers = self.lora_layers(model).items()
        return {
            path: (layer.r[NAME], min(layer.get_base_layer().weight.flatten(1).shape))
            for path, layer in layers
        }


def _rate(layer: Any) -> float:
    return float(getattr(layer.lora_dropout[NAME], "p", 0.0))  # nn.Identity if the rate is 0


def _check_dora(layers: list[dict[str, Any]], union: dict[str, Any]) -> None:
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
