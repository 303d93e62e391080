"""BaseTower: an ordered list of stages, and named components beside them."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from .base_router import BaseRouter, RouterError


class BaseTower(BaseRouter):
    """A tower: runs its stages in sequence, unless `forward` is overridden.

    `tower[0]` is a stage, `tower['head']` a component.

    >>> tower = BaseTower("a").extend([nn.Linear(4, 8), nn.ReLU()]).append(nn.Linear(8, 2))
    >>> len(tower), tower[-1].out_features
    (3, 2)
    """

    def __init__(self, name: str, *args: Any, **options: Any):
        super().__init__(name, *args, **options)
        self.stages = nn.ModuleList()

    def append(self, stage: nn.Module) -> "BaseTower":
        """Add a stage at the end."""
        self.stages.append(_checked(stage))
        return self

    def extend(self, stages: Iterable[nn.Module]) -> "BaseTower":
        """Add stages at the end."""
        for stage in stages:
            self.append(stage)
        return self

    def insert(self, index: int, stage: nn.Module) -> "BaseTower":
        """Add a stage in front of stage `index`."""
        self.stages.insert(index, _checked(stage))
        return self

    def __len__(self) -> int:
        return len(self.stages)

    def __bool__(self) -> bool:
        return True  # also without stages, where __len__ is 0

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.stages)

    def __getitem__(self, key: Any) -> Any:
        return self.stages[key] if isinstance(key, (int, slice)) else super().__getitem__(key)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


def _checked(stage: nn.Module) -> nn.Module:
    if not isinstance(stage, nn.Module):
        raise RouterError(f"stage: expected a torch.nn.Module, got {type(stage).__name__}")
    return stage
