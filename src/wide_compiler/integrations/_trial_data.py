"""Batches for trials that are in different epochs at the same time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .. import lanes
from ..errors import InputError
from ..model import WideModel
from ..training.data import Batch, Shared, make_batch
from ..training.random_state import random_state, seeded, set_random_state, untouched_random_state

_ENDED = object()


@dataclass
class DoorBatch:
    """A batch, and the entry point of the wide model it is for."""

    door: str
    batch: Batch


class TrialBatches:
    """One epoch for every lane, each lane reading the epoch of its trial.

    Lanes in the same epoch read the same batches. If all lanes are, batches are shared instead of stacked.
    """

    def __init__(
        self,
        source: Shared,
        epochs: Sequence[int | None],
        seed: int,
        split: Callable[[Any], tuple[Any, tuple]],
        wide: WideModel,
    ):
        self.split, self.wide = split, wide
        busy = [epoch for epoch in epochs if epoch is not None]
        self.epochs = [busy[0] if epoch is None else epoch for epoch in epochs]  # masked lanes read any
        self.readers = {epoch: Reader(source, epoch, seed, wide) for epoch in dict.fromkeys(self.epochs)}

    def __iter__(self) -> Iterator[DoorBatch]:
        device = self.wide._device()
        while True:
            raw = {epoch: reader.next() for epoch, reader in self.readers.items()}
            ended = [epoch for epoch, batch in raw.items() if batch is _ENDED]
            if len(ended) == len(raw):
                return
            if ended:
                raise InputError(
                    f"epoch {ended[0]} of the data has fewer batches than another; "
                    f"give all epochs the same number"
                )
            if len(raw) == 1:
                yield DoorBatch("shared", make_batch(raw[self.epochs[0]], self.split, device, "shared"))
            else:
                batches = lanes.stack([raw[epoch] for epoch in self.epochs], "the lanes' batches")
                yield DoorBatch("stacked", make_batch(batches, self.split, device, "stacked"))


class Reader:
    """Reads one epoch of the data with its own random state."""

    def __init__(self, source: Shared, epoch: int, seed: int, wide: WideModel):
        self.wide = wide
        self.draws = not isinstance(source.batches, (list, tuple))  # reading a list draws no random numbers
        with seeded(wide, seed + epoch):
            for generator in source.generators():
                generator.manual_seed(seed + epoch)
            source.begin_epoch(epoch)
            self.batches = iter(source)
            # The first batch fixes the order, so it is read before another reader advances the generators.
            self.ahead = next(self.batches, _ENDED)
            self.random = random_state(wide)
        if self.ahead is _ENDED:
            raise InputError(
                f"the data gave no batches in epoch {epoch + 1}; a generator can be read only once"
            )

    def next(self) -> Any:
        batch = self.ahead
        if batch is not _ENDED and not self.draws:
            self.ahead = next(self.batches, _ENDED)
        elif batch is not _ENDED:
            with untouched_random_state(self.wide):
                set_random_state(self.wide, self.random)
                self.ahead = next(self.batches, _ENDED)
                self.random = random_state(self.wide)
        return batch
