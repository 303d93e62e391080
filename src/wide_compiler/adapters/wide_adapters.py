"""WideAdapters: N adapters over one base as one wide model."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..config import WideConfig
from ..errors import ArgumentError, InputError, LaneIndexError
from ..model import WideModel
from ..model.marks import has_lanes
from . import atomic_folder, generation
from .estimate import Estimate
from .lane_table import check_ranks, corner, lane_tensors
from .trunk import Trunk, adapter_tensors, alias, copy_flags


class WideAdapters(WideModel):
    """A `WideModel` whose lanes are adapters; made by `adapters.compile`.

    Lanes are addressed by number or name. The base's tensors are stored once and run once for all lanes.

    Attributes:
        names: names of the lanes.
        configs: configs of the adapters, as given.
    """

    by_lane = ("names", "configs")  # attributes that are lists with one entry per lane

    trunk: Trunk
    library: Any
    room: "_Held"
    names: list[str]
    configs: list[Any]

    def __init__(
        self,
        trunk: Trunk,
        library: Any,
        room: nn.Module,
        models: Sequence[nn.Module],
        names: Sequence[str],
        sample: Any,
        sample_kwargs: Mapping[str, Any] | None,
        config: WideConfig,
        memory_limit: int | None = None,
    ):
        self.__dict__.update(trunk=trunk, library=library, names=list(names))
        self.__dict__["configs"] = [copy.deepcopy(library.config_of(model)) for model in models]
        here = adapter_tensors(room, trunk)
        table = [
            lane_tensors(library, model, trunk, here, f"lane {name!r}")
            for name, model in zip(names, models, strict=True)
        ]
        self.__dict__["room"] = _Held(room)
        if memory_limit is not None or next(room.parameters()).is_cuda:
            need = Estimate.of(room, trunk, len(table), sample, sample_kwargs, config.chunk_lanes)
            need.check(memory_limit)
        super().__init__([_member(room, trunk, lane) for lane in table], sample, sample_kwargs, config)

    def holds_once(self, tensor: Tensor) -> bool:
        return self.trunk.holds(tensor)

    def lane(self, lane: int | str) -> nn.Module:
        """Return an ordinary model (PEFT's, of the lane's rank) with a copy of all weights."""
        return copy.deepcopy(self._lane_over_trunk(lane))

    def merged(self, lane: int | str) -> nn.Module:
        """Return a copy of the base with the lane's adapter merged into its weights."""
        return self.library.merge(self.lane(lane))

    def load_lane(self, lane: int | str, state: Mapping[str, Tensor] | nn.Module) -> None:
        """Load an adapter (a model or its state_dict) of the lane's ranks into one lane."""
        tensors = dict(state.named_parameters()) if isinstance(state, nn.Module) else dict(state)
        tensors |= dict(state.named_buffers()) if isinstance(state, nn.Module) else {}
        member = self._lane_over_trunk(lane)
        own = adapter_tensors(member, self.trunk)
        buffers = dict(member.named_buffers()).keys() - tensors.keys()  # optional in a state_dict
        own = {path: tensor for path, tensor in own.items() if path not in buffers}
        for path, tensor in own.items():
            if path not in tensors or tensors[path].shape != tensor.shape:
                got = tuple(tensors[path].shape) if path in tensors else "missing"
                raise InputError(f"lane {lane!r}: {path} is {got}, expected {tuple(tensor.shape)}")
        with torch.no_grad():
            for path, tensor in own.items():
                tensor.copy_(tensors[path])
        self._put(self._lane_number(lane), member)

    def save_adapter(self, lane: int | str, folder: str | Path) -> None:
        """Write one lane as PEFT does: `adapter_model.safetensors` and `adapter_config.json`.

        The replacement is atomic: an interrupted write leaves the old adapter.
        """
        self.trunk.check_unchanged()
        model = self._lane_over_trunk(lane)
        atomic_folder.replace_folder(Path(folder), lambda new: self.library.save(model, new))

    def load_adapter(self, lane: int | str, folder: str | Path) -> None:
        """Load an adapter written by PEFT or `save_adapter`, with its config, into one lane."""
        atomic_folder.recover(Path(folder))
        with torch.random.fork_rng():
            model = self.library.load(self.trunk.copy(), Path(folder))
        number = self._lane_number(lane)
        self._put(number, model, str(folder))
        self.configs[number] = copy.deepcopy(self.library.config_of(model))

    def add(self, config: Any, name: str | None = None, optimizer: Any = None) -> int:
        """Add a lane with a new adapter, also during training. Return its number.

        Args:
            config: config of the adapter; its tensors must fit (see `max_rank` of `compile`).
            name: name of the lane.
            optimizer: the lane optimiser over this model; it gets a new state for the lane.
        """
        from .compile import injected

        name = name or self._new_name()
        if name in self.names:
            raise ArgumentError(f"there is a lane {name!r} already; choose another name, or remove it first")
        model = injected(self.library, self.trunk, config, f"lane {name!r}")
        check_ranks(self.library, model, f"lane {name!r}")
        self._fitting(model, f"lane {name!r}")  # raises before anything changes
        self._select([*range(self.n), 0], optimizer)
        lane = self.n - 1
        self.names[lane], self.configs[lane] = name, copy.deepcopy(self.library.config_of(model))
        self._put(lane, model)
        if optimizer is not None:
            optimizer.reset_lanes([lane])
        return lane

    def remove(self, lane: int | str, optimizer: Any = None) -> nn.Module:
        """Remove a lane, also during training. Return its ordinary model."""
        number, model = self._lane_number(lane), self.lane(lane)
        self._select([i for i in range(self.n) if i != number], optimizer)
        return model

    def select_lanes(self, indices: Sequence[Any]) -> "WideAdapters":
        chosen = [self._lane_number(lane) for lane in indices]
        super().select_lanes(chosen)
        self.configs = [copy.deepcopy(self.configs[lane]) for lane in chosen]
        before, self.names = self.names, []
        for lane in chosen:
            self.names.append(before[lane] if before[lane] not in self.names else self._new_name())
        return self

    def accept_base(self) -> None:
        """Accept the base's current weights after they were changed."""
        self.trunk.accept()

    def estimate(self, sample: Any = None, sample_kwargs: Mapping[str, Any] | None = None) -> Estimate:
        """Estimate the device memory of a training step on such inputs (of one lane)."""
        if sample is None and sample_kwargs is None:
            sample, sample_kwargs = self._sample
        chunk = self.config.chunk_lanes
        return Estimate.of(self.room.model, self.trunk, self.n, sample, sample_kwargs, chunk)

    def rows(self, *args: Any, lanes: Sequence[int | str], **kwargs: Any) -> Any:
        """Run one batch whose rows use different adapters, and return the output of the base's forward.

        Every tensor has as many rows as `lanes` has entries; rows of one lane need not be adjacent.
        """
        self.trunk.check_unchanged()
        return generation.rows(self, [self._lane_number(lane) for lane in lanes], args, kwargs)

    def generate(self, inputs: Any, lanes: Sequence[int | str] | None = None, **options: Any) -> Any:
        """Call Hugging Face's `generate` for all adapters at once, with the model's cache.

        Args:
            inputs: token ids: a list of N tensors `[B, T]`, one per lane, or a tensor `[B, T]` for all lanes;
                with `lanes`, a tensor with one row per entry. Prompts of different lengths are padded.
            lanes: the adapter of each row of `inputs`.
            options: options of `generate`; `attention_mask` in the form of `inputs`. `seeds=[...]`, one per
                lane: each lane samples as it would alone after `torch.manual_seed(seed)`.

        Returns:
            a list of N tensors, each equal to the output of the lane alone; with `lanes`, one tensor of rows.
        """
        self.trunk.check_unchanged()
        if lanes is None:
            return generation.generate_by_lane(self, inputs, options)
        return generation.generate_rows(self, inputs, [self._lane_number(lane) for lane in lanes], options)

    def _run(self, *args: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            self.trunk.check_unchanged()
        return super()._run(*args)

    def _lane_over_trunk(self, lane: int | str) -> nn.Module:
        """Return an ordinary model of one lane that shares the trunk's tensors."""
        number = self._lane_number(lane)
        with torch.random.fork_rng():
            model = self.library.inject(self.trunk.copy(), self.configs[number])
        with torch.no_grad():
            for path, tensor in adapter_tensors(model, self.trunk).items():
                tensor.copy_(self.lane_state(number, path)[corner(tensor.shape)])
        copy_flags(model, self)
        return model

    def _fitting(self, model: nn.Module, what: str) -> dict[str, Tensor]:
        room = adapter_tensors(self.room.model, self.trunk)
        return lane_tensors(self.library, model, self.trunk, room, what)

    def _put(self, lane: int, model: nn.Module, what: str = "") -> None:
        tensors = self._fitting(model, what or f"lane {self.names[lane]!r}")
        with torch.no_grad():
            for path, tensor in tensors.items():
                if path not in self.wide_states:
                    if torch.equal(self.lane_state(lane, path), tensor):
                        continue
                    self.promote(path)
                self.lane_state(lane, path).copy_(tensor)

    def _select(self, lanes: list[int], optimizer: Any) -> None:
        from ..training import Population

        Population(self, optimizer).select(lanes)

    def _new_name(self) -> str:
        return next(name for i in itertools.count() if (name := f"lane{i}") not in self.names)

    def _lane_number(self, lane: Any) -> int:
        if isinstance(lane, str):
            if lane not in self.names:
                raise LaneIndexError(f"there is no lane {lane!r}; the lanes are {', '.join(self.names)}")
            return self.names.index(lane)
        return super()._lane_number(lane)

    def __deepcopy__(self, memo: dict[int, Any]) -> "WideAdapters":
        # The copy's trunk lies in the same memory, but is not moved or converted when the original is.
        for parameter in self.trunk.model.parameters():
            memo[id(parameter)] = alias(parameter)
        for _, parameter, _ in self.trunk.versions:  # nor is the base, which is watched for writes
            memo[id(parameter)] = parameter
        for parameter in self.parameters():
            if not has_lanes(parameter):
                memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
        return super().__deepcopy__(memo)  # type: ignore[return-value]

    def _apply(self, fn: Any, recurse: bool = True) -> "WideAdapters":
        super()._apply(fn, recurse)
        now = self.tensors()
        for path, parameter in self.room.model.named_parameters():
            if self.trunk.holds(parameter) and path not in self.wide_states:
                parameter.data = now[path].data  # keep sharing the trunk on the new device
        self.room.model._apply(fn)
        self.trunk.model._apply(fn)
        return self


class _Held:
    """Holds a module without registering it as a child."""

    def __init__(self, model: nn.Module):
        self.model = model


def _member(room: nn.Module, trunk: Trunk, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of `room` with one lane's tensors."""
    member = copy.deepcopy(room, {id(p): p for p in room.parameters() if trunk.holds(p)})
    with torch.no_grad():
        for path, tensor in adapter_tensors(member, trunk).items():
            tensor.copy_(tensors[path])
    return member
