"""ModuleLanes: N modules as lanes, which keep their own tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..capture import CaptureFailed, Slot, canonical_names, slots
from ..capture.state import home_of
from ..errors import AlignmentError
from ..lanes import own_gradient
from ..model.members import Skeletons, hooks_lost, is_one_object


@dataclass
class ModulePlace:
    """The tensors of one canonical path: for each lane, the dict that holds it and its key."""

    path: str
    kind: str
    homes: list[tuple[dict[str, Any], str]]  # one per lane

    @classmethod
    def of(cls, modules: Sequence[nn.Module], slot: Slot) -> "ModulePlace":
        owners = [module.get_submodule(slot.owner) for module in modules]
        return cls(slot.path, slot.kind, [(home_of(owner, slot.kind), slot.name) for owner in owners])

    @property
    def tensors(self) -> list[Tensor]:
        return [home[name] for home, name in self.homes]


class ModuleLanes:
    """The interface that `ProgramCache` needs from a model with lanes, on top of the modules themselves.

    Keeps no copies: tensors are stacked on request.
    """

    def __init__(self, modules: Sequence[nn.Module], runs_python: bool = False):
        """`runs_python`: whether parts that cannot be captured may run as Python."""
        self.living, self.n, self.runs_python = list(modules), len(modules), runs_python
        try:
            self.skeletons = Skeletons.of(modules)
        except (AlignmentError, RuntimeError) as error:  # deepcopy failed
            raise CaptureFailed(f"it cannot be copied: {error}") from error
        names = canonical_names(modules[0])
        self.places = [
            ModulePlace.of(modules, slot) for slot in slots(modules[0]) if names[slot.path] == slot.path
        ]
        self.by_path = {place.path: place for place in self.places}
        self.one_object = {place.path for place in self.places if is_one_object(place.tensors)}
        self.wide_states = set(self.by_path) - self.one_object
        # A single lane also counts as wide, because its tensors are its own.
        if self.n == 1:
            self.wide_states, self.one_object = set(self.by_path), set()
        self.uncapturable = hooks_lost(modules)

    def tensors(self) -> dict[str, Tensor]:
        """Canonical path -> tensor, `[N, ...]` where lanes have their own."""
        return {
            place.path: own_gradient(torch.stack(place.tensors)) if wide else place.tensors[0]
            for place in self.places
            for wide in [place.path in self.wide_states]
        }

    def capture_state(self, lane: int, path: str) -> Tensor:
        return self.by_path[path].tensors[lane].detach()

    def promote(self, path: str) -> None:
        raise AssertionError(f"{path}: lanes of their own are wide from the start")

    def separate_members(self) -> None:
        if not self.runs_python:
            raise CaptureFailed("a part of it can only run as Python")
