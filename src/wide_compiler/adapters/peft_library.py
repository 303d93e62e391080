"""Adapters implemented by PEFT."""

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import ArgumentError, UnsupportedError
from .library import NAME, AdapterLibrary

# Initialisations that do not change the base's weights; others (pissa, olora, ...) do.
KEEPS_BASE = (True, False, "gaussian", "orthogonal", "eva")


class PeftLibrary(AdapterLibrary):
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
                f"{config.peft_type.value} adds tokens in front of the input instead of adapting modules; "
                "choose a method that adapts modules, such as LoRA or IA3"
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

    def lora_layers(self, model: nn.Module) -> dict[str, Any]:
        from peft.tuners.lora import LoraLayer

        return {path: m for path, m in model.named_modules() if isinstance(m, LoraLayer) and NAME in m.r}

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
                raise ArgumentError(
                    f"{what}: {key} of the base differs from the base here, which all lanes share; "
                    "load an adapter of this base"
                )
        state = {key: tensor for key, tensor in state.items() if key.replace(".base_layer", "") not in base}
        result: Any = peft.set_peft_model_state_dict(model, state, NAME)
        missing = [key for key in result.missing_keys if f".{NAME}" in key]
        if missing or result.unexpected_keys:
            wrong = missing or result.unexpected_keys
            raise ArgumentError(
                f"{what} {'lacks' if missing else 'has'} {wrong[0]}: its tensors do not match its config"
            )

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
