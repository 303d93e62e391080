"""Workload: a model or layer to measure, with inputs and numbers of lanes; Preset: how much to measure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..primitives import WideModule

InputMaker = Callable[[int, torch.device], Tensor]
Call = Callable[[nn.Module, Tensor], Any]


def plain_call(module: nn.Module, x: Tensor) -> Any:
    return module(x)


@dataclass(frozen=True)
class Workload:
    """One architecture to run N times.

    Attributes:
        name: name on the command line.
        about: one line for the list.
        make: returns a member with fresh weights.
        inputs: returns one member's input for a batch size and device.
        n: the number of lanes to quote.
        batch: the batch size to quote.
        sweep: the numbers of lanes of the full preset.
        few: the numbers of lanes of the quick preset.
        tolerance: largest allowed error, relative to the loop's largest value. Where the loop itself is less
            accurate (TF32), its own error counts instead.
        train_tolerance: the same for the first training steps.
        primitive: the wide layer whose strategies are measured; None for a whole model.
        call: runs a member, or the wide layer, on its input.
        random: the member zeroes random elements: it runs in training mode, and elements that are zero on
            either side are not compared.
    """

    name: str
    about: str
    make: Callable[[], nn.Module]
    inputs: InputMaker
    n: int
    batch: int
    sweep: Sequence[int]
    few: Sequence[int]
    tolerance: float = 1e-4
    train_tolerance: float = 1e-3
    primitive: type[WideModule] | None = None
    call: Call = plain_call
    random: bool = False

    @property
    def kind(self) -> str:
        return "model" if self.primitive is None else "primitive"


def floats(*shape: int) -> InputMaker:
    """Normally distributed floats `[batch, *shape]`."""
    return lambda batch, device: torch.randn(batch, *shape, device=device)


def token_ids(vocabulary: int, *shape: int) -> InputMaker:
    """Integers below `vocabulary`, `[batch, *shape]`."""
    return lambda batch, device: torch.randint(0, vocabulary, (batch, *shape), device=device)


@dataclass(frozen=True)
class Preset:
    """`seconds`: time per candidate of one row; `largest_batch`: upper limit of the batch size."""

    name: str
    about: str
    seconds: float
    largest_batch: int | None = None

    def lanes(self, workload: Workload) -> Sequence[int]:
        """Return the numbers of lanes to measure."""
        return {"full": workload.sweep, "quick": workload.few, "ci": CI_LANES}[self.name]

    def batch(self, workload: Workload) -> int:
        return min(workload.batch, self.largest_batch or workload.batch)


CI_LANES = (2, 4)

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("quick", "a few numbers of lanes, a few seconds each layer", 0.15),
        Preset("full", "the whole sweep over the number of lanes", 0.5),
        Preset("ci", "two small numbers of lanes: does everything run, and is it right", 0.02, 4),
    )
}
