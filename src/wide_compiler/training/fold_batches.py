"""Cross validation: every lane leaves out a fold of its own."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from .. import lanes
from ..errors import InputError
from .data import Shared
from .search import folds


def fold_batches(
    dataset: Dataset,
    k: int,
    batch_size: int,
    n: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
) -> tuple["FoldBatches", "FoldBatches"]:
    """Batches to train on and to validate with, `[N, B, ...]`: lane i leaves out fold `i % k`.

    All folds have `len(dataset) // k` samples; the few that remain are in every lane's training.

    Args:
        dataset: has a length and gives sample i; all of one shape.
        k: how many folds.
        batch_size: samples per lane and batch.
        n: how many lanes; k unless said otherwise, or a multiple of it (several settings on the same folds).
        seed: which sample falls into which fold.
        shuffle: each epoch in another order, for each lane in its own.

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
    return FoldBatches(dataset, train, batch_size, shuffle), FoldBatches(
        dataset, validation, batch_size, False
    )


class FoldBatches(Shared):
    """Batches `[N, B, ...]` of each lane's own samples: `index` is `[N, samples]`."""

    door = "stacked"

    def __init__(self, dataset: Dataset, index: Tensor, batch_size: int, shuffle: bool):
        self.dataset, self.index, self.batch_size, self.shuffle = dataset, index, batch_size, shuffle

    def check(self, n: int) -> None:
        if len(self.index) != n:
            raise InputError(f"there are folds for {len(self.index)} lanes, the model has {n}")

    def __len__(self) -> int:
        return -(-self.index.shape[1] // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        index = self.index
        if self.shuffle:
            index = index.gather(1, torch.rand(index.shape).argsort(1))
        for chosen in index.split(self.batch_size, 1):
            yield self._collate(chosen)

    def iterables(self) -> list[Any]:
        return []

    def _collate(self, chosen: Tensor) -> Any:
        if type(self.dataset) is TensorDataset:
            return tuple(tensor[chosen.to(tensor.device)] for tensor in self.dataset.tensors)
        return lanes.stack([default_collate([self.dataset[i] for i in row]) for row in chosen.tolist()])
