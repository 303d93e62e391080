"""TensorBoard curves for every lane."""

import os
from collections.abc import Sequence

from torch import Tensor

from ..errors import needs
from .moment import Moment


class TensorBoard:
    """A callback of `fit` that writes losses and metrics, one TensorBoard run per lane.

    Args:
        folder: log folder; each lane gets a subfolder.
        names: names of the lanes; by default 'lane0', 'lane1', ...
        every: steps between losses written.
    """

    by_number = False  # uses only tensors of the moment, no lane of the model

    def __init__(self, folder: str | os.PathLike[str], names: Sequence[str] | None = None, every: int = 1):
        needs("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.folder, self.names, self.every = os.fspath(folder), names, every
        self.make = SummaryWriter
        self.writers: list[SummaryWriter] = []

    def __call__(self, moment: Moment) -> None:
        if not self.writers:
            names = self.names or [f"lane{lane}" for lane in range(len(moment.losses))]
            self.writers = [self.make(os.path.join(self.folder, name)) for name in names]
        if moment.event == "step" and moment.step % self.every == 0:
            self._write("loss", moment.losses, moment)
        elif moment.event == "validation":
            for name, values in moment.metrics.items():
                self._write(name, values, moment)

    def _write(self, tag: str, values: Tensor, moment: Moment) -> None:
        numbers = values.detach().cpu().tolist()
        for lane in moment.active.nonzero().flatten().tolist():
            self.writers[lane].add_scalar(tag, numbers[lane], moment.step)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
