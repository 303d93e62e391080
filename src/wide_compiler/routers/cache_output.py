"""What towers leave in their caches, as one more output of their graph."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from .base_router import RUNNING, BaseRouter

# How a capture says that a forward has filled a cache.
CACHE_READ = "the cache of "


class CacheAsOutput(nn.Module):
    """A tower that gives (its output, what its routers were left: path -> key -> value) with empty caches."""

    def __init__(self, tower: nn.Module):
        super().__init__()
        self.tower = tower
        self.training = tower.training

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, dict[str, Any]]]:
        running, count = RUNNING.forward, len(RUNNING.filled)
        RUNNING.forward = True  # no router in it is the outermost one, which would empty the caches
        try:
            output = self.tower(*args, **kwargs)
        finally:
            RUNNING.forward = running
            del RUNNING.filled[count:]
        left = {}
        for path, part in self.tower.named_modules():
            if isinstance(part, BaseRouter) and part._router_cache:
                left[path] = dict(part._router_cache)
                part._router_cache.clear()
        return output, left


def leave_in_caches(towers: Sequence[nn.Module], results: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Fill the caches as the towers themselves would have; gives their outputs."""
    outputs = []
    for tower, (output, left) in zip(towers, results, strict=True):
        for path, entries in left.items():
            router: Any = tower.get_submodule(path)
            for key, value in entries.items():
                router.cache_set(key, value)
        outputs.append(output)
    return outputs
