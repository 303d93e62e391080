"""Data sources: the same batches for all lanes, or separate batches per lane.

A batch is `(inputs, *targets)`. `inputs` is a tensor, a tuple of positional arguments of the model, or a dict
of keyword arguments. A single tensor is an input without targets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from .. import _tree, lanes
from ..errors import InputError
from .search import folds


@dataclass
class Batch:
    """Arguments of the model and of the loss for one step."""

    args: tuple
    kwargs: dict[str, Any]
    targets: tuple
    size: int  # samples per lane


class Shared:
    """The same batches `[B, ...]` for all lanes. `fit` wraps any other iterable in this class."""

    door = "shared"
    over: Sequence[int] = ()  # lanes without further data; training stops for them

    def __init__(self, batches: Iterable[Any]):
        if not isinstance(batches, Iterable):
            raise InputError(f"data must be an iterable of batches, got {type(batches).__name__}")
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def check(self, n: int) -> None:
        """Raise `InputError` if the data does not fit a model of `n` lanes. Called before training."""

    def check_batch(self, batch: Any) -> None:
        """Raise `InputError` if a batch does not fit the model."""

    def begin_epoch(self, epoch: int) -> None:
        """Call `set_epoch(epoch)` on every sampler that has it, such as a DistributedSampler."""
        for sampler in [sampler for loader in self.iterables() for sampler in _samplers(loader)]:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def iterables(self) -> list[Any]:
        """Return the iterables that batches are read from."""
        return [self.batches]

    def generators(self) -> list[torch.Generator]:
        """Return the generators, other than the global ones, that determine the order of samples."""
        holders = [holder for loader in self.iterables() for holder in (loader, *_samplers(loader))]
        found = [getattr(holder, "generator", None) for holder in holders]
        unique = {id(g): g for g in found if isinstance(g, torch.Generator)}
        return list(unique.values())


class Stacked(Shared):
    """Batches that already have a lane axis: inputs and targets are `[N, B, ...]`."""

    door = "stacked"

    def __init__(self, batches: Iterable[Any]):
        super().__init__(batches)
        self.n = 0

    def check(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.check_batch(batch)
            yield batch

    def check_batch(self, batch: Any) -> None:
        for path, leaf in zip(_tree.leaf_paths(batch), _tree.flatten(batch)[0], strict=True):
            if self.n and isinstance(leaf, Tensor) and leaf.shape[:1] != (self.n,):
                raise InputError(
                    f"a stacked batch has {tuple(leaf.shape)} at {path or 'its top'}, expected {self.n} "
                    f"lanes on axis 0; for the same batches in all lanes pass the data as it is"
                )


class PerLane(Shared):
    """One source per lane, all of the same length: lane i reads `sources[i]`."""

    door = "stacked"

    def __init__(self, sources: Sequence[Iterable[Any]]):
        self.sources = list(sources)
        for lane, source in enumerate(self.sources):
            if not isinstance(source, Iterable):
                raise InputError(f"lane {lane}: data must be an iterable, got {type(source).__name__}")

    def check(self, n: int) -> None:
        if len(self.sources) != n:
            raise InputError(
                f"there is data for {len(self.sources)} lanes, the model has {n}; "
                f"give one source for each lane"
            )

    def __iter__(self) -> Iterator[Any]:
        ended = object()
        iterators = [iter(source) for source in self.sources]
        count = 0
        while True:
            batches = [next(iterator, ended) for iterator in iterators]
            over = [lane for lane, batch in enumerate(batches) if batch is ended]
            if len(over) == len(batches):
                return
            if over:
                goes_on = next(lane for lane in range(len(batches)) if lane not in over)
                raise InputError(
                    f"the data of lane {over[0]} ended after {count} batches, lane {goes_on} goes on; give "
                    f"all lanes the same number of batches"
                )
            yield lanes.stack(batches, f"batch {count}")
            count += 1

    def __len__(self) -> int:
        return min(len(source) for source in self.sources)  # type: ignore[arg-type]

    def iterables(self) -> list[Any]:
        return self.sources


def as_source(data: Any, n: int) -> Shared:
    """Wrap an iterable of batches as a source and check it against the number of lanes."""
    source = data if isinstance(data, Shared) else Shared(data)
    source.check(n)
    return source


def _samplers(loader: Any) -> list[Any]:
    """Return the samplers of a DataLoader."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    found = [getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    return list({id(x): x for x in found if x is not None}.values())


def split_batch(batch: Any) -> tuple[Any, tuple]:
    """Split `(inputs, *targets)` into inputs and targets. A dict is both: all inputs and the one target."""
    if isinstance(batch, Mapping):
        return batch, (batch,)
    if isinstance(batch, (tuple, list)) and batch:
        return batch[0], tuple(batch[1:])
    return batch, ()


def make_batch(raw: Any, split: Callable[[Any], tuple[Any, tuple]], device: torch.device, door: str) -> Batch:
    """Move a raw batch to `device` and split it into arguments and targets."""

    def move(x: Any) -> Any:
        return x.to(device, non_blocking=True) if isinstance(x, Tensor) and x.device != device else x

    plain = type(raw) in (tuple, list) and all(isinstance(x, Tensor) for x in raw)
    inputs, targets = split(type(raw)(map(move, raw)) if plain else _tree.tree_map(move, raw))
    args: tuple = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    else:
        args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    leaves = args if args and isinstance(args[0], Tensor) else _tree.flatten((args, kwargs))[0]
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    if not tensors:
        raise InputError(
            f"a batch has no tensor among its inputs, got {type(raw).__name__}; "
            "pass split=lambda batch: (inputs, targets)"
        )
    axis = int(door == "stacked")
    size = tensors[0].shape[axis] if tensors[0].dim() > axis else 1
    return Batch(args, kwargs, targets, size)


def fold_batches(
    dataset: Dataset,
    k: int,
    batch_size: int,
    n: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
) -> tuple["FoldBatches", "FoldBatches"]:
    """Return training and validation batches `[N, B, ...]` of k folds: lane i leaves out fold `i % k`.

    Each fold has `len(dataset) // k` samples. Remaining samples are in the training data of every lane.

    Args:
        dataset: a dataset with a length and samples of equal shape.
        k: number of folds.
        batch_size: samples per lane and batch.
        n: number of lanes; `k` by default, or a multiple of it (several settings on the same folds).
        seed: seed of the assignment of samples to folds.
        shuffle: reorder the training samples every epoch, independently per lane.

    >>> data = TensorDataset(torch.arange(10.0))
    >>> train, validation = fold_batches(data, k=5, batch_size=4)
    >>> [x.shape for (x,) in train], sorted(torch.cat([x for (x,) in validation], 1).flatten().tolist())[:3]
    ([torch.Size([5, 4]), torch.Size([5, 4])], [0.0, 1.0, 2.0])
    """
    n = k if n is None else n
    if batch_size < 1:
        raise InputError(f"batch_size must be positive, got {batch_size}")
    train, held_out = folds(len(dataset), k, seed)  # type: ignore[arg-type]
    if n < 1 or n % k:
        raise InputError(f"{n} lanes cannot have {k} folds equally often; make n a multiple of k")
    train, validation = train.repeat(n // k, 1), held_out.repeat(n // k, 1)
    held = FoldBatches(dataset, validation, batch_size, False)
    return FoldBatches(dataset, train, batch_size, shuffle), held


class FoldBatches(Shared):
    """Batches `[N, B, ...]` of samples chosen per lane by `index`, `[N, samples]`."""

    door = "stacked"

    def __init__(self, dataset: Dataset, index: Tensor, batch_size: int, shuffle: bool):
        self.dataset, self.index, self.batch_size, self.shuffle = dataset, index, batch_size, shuffle

    def check(self, n: int) -> None:
        if len(self.index) != n:
            raise InputError(
                f"the data has folds for {len(self.index)} lanes, the model has {n}; make it with "
                f"fold_batches(..., n={n})"
            )

    def __len__(self) -> int:
        return -(-self.index.shape[1] // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        index = self.index
        if self.shuffle:
            index = index.gather(1, torch.rand(index.shape).argsort(1))
        data = self.dataset
        for chosen in index.split(self.batch_size, 1):
            if type(data) is TensorDataset:
                yield tuple(tensor[chosen.to(tensor.device)] for tensor in data.tensors)
            else:
                yield lanes.stack([default_collate([data[i] for i in row]) for row in chosen.tolist()])

    def iterables(self) -> list[Any]:
        return []
