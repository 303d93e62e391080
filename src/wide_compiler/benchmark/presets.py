"""Presets: how much of a workload is measured, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass

from .workload import Workload


@dataclass(frozen=True)
class Preset:
    """`seconds` is what one candidate of one row may take; `largest_batch` caps the workload's own batch."""

    name: str
    about: str
    seconds: float
    largest_batch: int | None = None

    def lanes(self, workload: Workload) -> Sequence[int]:
        """The numbers of lanes to measure."""
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
