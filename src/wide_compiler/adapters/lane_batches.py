"""Joining of batches of lanes that differ in size and length."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..training.data import PerLane


class LaneBatches(PerLane):
    """One data source per lane, with different batch sizes, sequence lengths and numbers of batches.

    A batch is a dict of tensors `[B, T, ...]` (token ids, labels) or `[B]`. Smaller batches are padded to the
    largest of the step: `labels` with `ignore`, so that padding does not count in the loss; `attention_mask`
        with
    0 (created if missing and padding is needed); others with `fill`. A lane without further data stops; the
    others continue.

    Args:
        sources: an iterable of batches for each lane.
        epochs: how often each lane's data is read.
        fill: token used for padding, or a dict of tokens by key.
        ignore: label used for padding.
        targets: keys passed to the loss instead of the model.

    >>> short, long = [{"input_ids": torch.ones(1, 2)}], [{"input_ids": torch.ones(2, 3)}] * 2
    >>> batches = LaneBatches([short, long])
    >>> [inputs["input_ids"].shape for inputs in batches], batches.over
    ([torch.Size([2, 2, 3]), torch.Size([2, 2, 3])], [0, 1])
    """

    def __init__(
        self,
        sources: Sequence[Iterable[Any]],
        epochs: int = 1,
        fill: int | Mapping[str, int] = 0,
        ignore: int = -100,
        targets: Sequence[str] = ("labels",),
    ):
        super().__init__(sources)
        self.epochs, self.fill, self.ignore, self.targets = epochs, fill, ignore, tuple(targets)
        self.over: list[int] = []

    def __len__(self) -> int:
        return self.epochs * max(len(source) for source in self.sources)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        self.over = []
        streams = [self._stream(lane) for lane in range(len(self.sources))]
        last: list[Any] = [None] * len(streams)
        while True:
            batches = [next(stream, None) for stream in streams]
            self.over = [lane for lane, batch in enumerate(batches) if batch is None]
            if len(self.over) == len(batches):
                return
            for lane, batch in enumerate(batches):
                if batch is None and last[lane] is None:
                    raise InputError(
                        f"lane {lane}: its data gave no batches; a generator can be read only once"
                    )
                last[lane] = last[lane] if batch is None else batch  # a stopped lane repeats its last batch
            yield self._joined(last)

    def _stream(self, lane: int) -> Iterator[Any]:
        for _ in range(self.epochs):
            yield from self.sources[lane]

    def _joined(self, batches: list[Mapping[str, Tensor]]) -> Any:
        keys = list(batches[0])
        for lane, batch in enumerate(batches):
            if list(batch) != keys:
                raise InputError(
                    f"lane {lane}: its batch has {list(batch)}, lane 0 has {keys}; "
                    f"give all lanes the same keys"
                )
        shapes = {key: [batch[key].shape for batch in batches] for key in keys}
        if "attention_mask" not in keys and any(len(set(s)) > 1 for s in shapes.values()):
            main = next(key for key in keys if key not in self.targets and len(shapes[key][0]) > 1)
            batches = [{**batch, "attention_mask": _ones(batch[main])} for batch in batches]
            keys.append("attention_mask")
        joined = {key: self._stack(key, [batch[key] for batch in batches]) for key in keys}
        if "attention_mask" in joined:  # padding rows attend to one token: softmax over nothing is nan
            joined["attention_mask"][..., 0] |= (joined["attention_mask"] == 0).all(-1)
        targets = [joined.pop(key) for key in self.targets if key in joined]
        return (joined, *targets) if targets else joined

    def _stack(self, key: str, tensors: list[Tensor]) -> Tensor:
        value = self.ignore if key in self.targets else 0 if key == "attention_mask" else self.fill
        number = value.get(key, 0) if isinstance(value, Mapping) else value
        if len({t.dim() for t in tensors}) > 1:
            raise InputError(f"{key} is {[tuple(t.shape) for t in tensors]} by lane, expected one rank")
        size = [max(sizes) for sizes in zip(*(t.shape for t in tensors), strict=True)]
        out = tensors[0].new_full((len(tensors), *size), number)
        for lane, tensor in enumerate(tensors):
            out[lane][tuple(map(slice, tensor.shape))] = tensor
        return out


def _ones(tensor: Tensor) -> Tensor:
    return torch.ones(tensor.shape[:2], dtype=torch.int64, device=tensor.device)
