"""Zero-copy views: the original models' tensors become lanes of the stacked ones, on request."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..capture import slots
from ..capture.state import canonical_names
from .submodules import Place


class Views:
    """Keeps the original models' tensors as views of the wide model's memory."""

    def __init__(self, models: Sequence[nn.Module], places: Sequence[Place], wide: set[str]):
        self.models: list[Callable[[], nn.Module | None]] = [weakref.ref(model) for model in models]
        for model in models:
            model.register_state_dict_post_hook(_own_memory)
        self.relink(places, wide)

    def select(self, lanes: Sequence[int]) -> None:
        """Assign each model to the first new position of its lane; models of removed lanes get copies.

        Call it before the tensors are selected, and `relink` after.
        """
        models, self.models = self.models, []
        for lane in set(range(len(models))) - set(lanes):
            model = models[lane]()
            for slot in slots(model) if model is not None else ():
                slot.tensor.data = slot.tensor.data.clone()
        for position, lane in enumerate(lanes if models else ()):
            first = lane not in lanes[:position]
            self.models.append(models[lane] if first else lambda: None)

    def relink(self, places: Sequence[Place], wide: set[str]) -> None:
        stacked = {place.path: place.tensor for place in places}
        for lane, reference in enumerate(self.models):
            model = reference()
            if model is None:
                continue
            names = canonical_names(model)
            for slot in slots(model):
                path = names[slot.path]
                if path in stacked:
                    slot.tensor.data = stacked[path].data[lane] if path in wide else stacked[path].data


def _own_memory(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    # Clone, because saving one member would otherwise save the storage of all N.
    for key in list(state):
        if key.startswith(prefix):
            state[key] = state[key].clone()
