"""compile(): one base and N adapters -> one wide model.

base, configs
  -> Trunk                 the base's tensors, once, without a copy                 trunk.py
  -> inject                each lane's adapter, as PEFT makes it                    peft_library.py
  -> room_for              one model large enough for the ranks of all lanes        lane_table.py
  -> WideAdapters          the members, stacked; the trunk runs once                wide_adapters.py
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .. import api
from ..config import WideConfig
from ..errors import ArgumentError, InputError, WideError, WrongTypeError
from .lane_table import check_ranks
from .lora_library import LoraConfig, LoraLibrary, LoraModel
from .peft_library import PeftLibrary
from .trunk import Trunk, copy_flags
from .wide_adapters import WideAdapters

# Trunk, adapter library, models of the lanes, names of the lanes.
Lanes = tuple[Trunk, Any, list[nn.Module], list[str]]


def compile(
    base: nn.Module | Sequence[nn.Module],
    *arguments: Any,
    sample_kwargs: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    max_rank: int | None = None,
    config: WideConfig | None = None,
    memory_limit: int | None = None,
    **options: Any,
) -> WideAdapters:
    """Compile many adapters over one frozen base into one wide model.

        compile(base, configs, sample)      a model and N configs (of PEFT, or `adapters.LoraConfig`)
        compile(peft_model, sample)         a `PeftModel` with N named adapters
        compile(peft_models, sample)        N models that share their base's tensors

    The base is not changed: its weights are used without a copy, and its `requires_grad` is kept.

    Args:
        configs: a list, or a dict from lane names to configs; each may have its own rank, alpha, dropout,
            initialisation and target modules.
        sample: as for `wide_compiler.compile`.
        sample_kwargs: keyword arguments of the sample.
        names: names of the lanes; by default the keys of the dict, the names of the adapters, or 'lane0', ...
        max_rank: maximum rank of adapters added later (`add`, `load_adapter`).
        config: a `WideConfig`.
        memory_limit: bytes that one training step may use according to `estimate`; by default the free memory
            of the base's GPU. Beyond it `ArgumentError` is raised before anything is built.
        options: further fields of `WideConfig`, such as `chunk_lanes`.

    >>> base = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> configs = {"small": LoraConfig(["0"], r=1), "big": LoraConfig(["0"], r=4)}
    >>> wide = compile(base, configs, torch.randn(2, 4))
    >>> wide.names, wide.shared(torch.randn(5, 4)).shape
    (['small', 'big'], torch.Size([2, 5, 2]))
    """
    config = (config or WideConfig()).replace(**options)

    def build() -> WideAdapters:
        trunk, library, models, found = _lanes(base, list(arguments))
        if len(arguments) != (2 if _takes_configs(base) else 1):
            raise ArgumentError(
                "adapters.compile takes (base, configs, sample), (peft_model, sample) or (models, sample)"
            )
        named = list(found if names is None else names)
        if len(named) != len(models) or len(set(named)) < len(named):
            raise ArgumentError(
                f"there are {len(models)} lanes, names are {named}; give one of its own for each"
            )
        for name, model in zip(named, models, strict=True):
            check_ranks(library, model, f"lane {name!r}")
        with torch.random.fork_rng():
            room = library.room_for(trunk.copy(), models, max_rank)
        copy_flags(room, models[0])
        more = (arguments[-1], sample_kwargs, config, memory_limit)
        return WideAdapters(trunk, library, room, models, named, *more)

    wide = api.build_model(build)
    assert isinstance(wide, WideAdapters)
    return wide


def _takes_configs(base: Any) -> bool:
    return isinstance(base, nn.Module) and not hasattr(base, "peft_config")


def _lanes(base: Any, arguments: list[Any]) -> Lanes:
    """Return the trunk, the adapter library, the lanes' models, and their names."""
    if _takes_configs(base):
        return _from_configs(base, arguments[0] if arguments else None)
    if isinstance(base, nn.Module):
        return _from_named(base)
    if isinstance(base, (list, tuple)) and base and all(isinstance(m, nn.Module) for m in base):
        return _from_models(list(base))
    raise WrongTypeError(
        f"adapters.compile takes a base model, a PeftModel or a list of them, got {type(base).__name__}"
    )


def _from_configs(base: nn.Module, configs: Any) -> Lanes:
    names = list(configs) if isinstance(configs, Mapping) else None
    configs = list(configs.values() if isinstance(configs, Mapping) else configs or ())
    if not configs:
        raise ArgumentError("no configs: adapters.compile(base, configs, sample) needs one for each lane")
    own = [isinstance(c, LoraConfig) for c in configs]
    library: Any = LoraLibrary() if all(own) else PeftLibrary()
    if any(own) != all(own) or not all(
        o or hasattr(c, "peft_type") for o, c in zip(own, configs, strict=True)
    ):
        kinds = sorted({type(c).__module__ + "." + type(c).__name__ for c in configs})
        raise WrongTypeError(
            f"configs must be all of PEFT or all adapters.LoraConfig, got {', '.join(kinds)}"
        )
    trunk = Trunk(base)
    names = names or [f"lane{i}" for i in range(len(configs))]
    models = [injected(library, trunk, c, f"lane {n!r}") for n, c in zip(names, configs, strict=True)]
    return trunk, library, models, names


def _from_named(model: nn.Module) -> Lanes:
    library: Any = LoraLibrary() if isinstance(model, LoraModel) else PeftLibrary()
    states = library.adapter_states(model)
    _check_frozen(model, library)
    shared = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    trunk = Trunk(library.base_of(shared))
    models = [_restored(library, trunk, state, f"adapter {name!r}") for name, state in states.items()]
    for lane in models:
        copy_flags(lane, model)
    return trunk, library, models, list(states)


def _from_models(models: list[nn.Module]) -> Lanes:
    first, library, lanes, names = _from_named(models[0])
    places = {path: p.data_ptr() for path, p in first.model.named_parameters()}
    for number, model in enumerate(models[1:], start=1):
        trunk, _, _, other = _from_named(model)
        for path, parameter in trunk.model.named_parameters():
            if places.get(path) != parameter.data_ptr():
                raise InputError(
                    f"model {number}: {path} of its base is not the tensor of model 0; give the "
                    f"base and the configs, or models made over the same tensors"
                )
        for state in library.adapter_states(model).values():
            lanes.append(_restored(library, first, state, f"model {number}"))
            copy_flags(lanes[-1], model)
        names += other
    unique = len(set(names)) == len(names)
    return first, library, lanes, names if unique else [f"lane{i}" for i in range(len(lanes))]


def injected(library: Any, trunk: Trunk, config: Any, what: str) -> nn.Module:
    """Return a lane's model. Errors of the library are raised with `what` in front."""
    base = trunk.copy()
    modules = {path.rpartition(".")[2] for path, m in base.named_modules() if hasattr(m, "weight")}
    try:
        return library.inject(base, config)
    except WideError as error:
        raise type(error)(f"{what}: {error}") from error
    except ValueError as error:
        raise ArgumentError(f"{what}: {error} The base has {', '.join(sorted(modules))}") from error


def _restored(library: Any, trunk: Trunk, adapter: tuple[Any, Any], what: str) -> nn.Module:
    """Return a model over the trunk with an adapter, given as (config, tensors)."""
    config, state = adapter
    with torch.random.fork_rng():
        model = injected(library, trunk, config, what)
    library.load_state(model, state, what)
    return model


def _check_frozen(model: nn.Module, library: Any) -> None:
    layers = library.layers(model)
    for path, parameter in model.named_parameters():
        inside = any(path.startswith(f"{layer}.") for layer in layers)
        if parameter.requires_grad and (not inside or ".base_layer." in path or ".original_module." in path):
            raise InputError(
                f"{path} is a trainable parameter of the base, which all lanes share: freeze it "
                f"(requires_grad_(False)), or give each lane its own by modules_to_save"
            )
