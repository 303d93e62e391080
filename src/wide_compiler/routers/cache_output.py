"""Cached tensors of towers as an additional output of their graph."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from .base_router import RUNNING, BaseRouter

# Prefix of the message with which a capture reports that a forward fills a cache.
CACHE_READ = "the cache of "


class CacheAsOutput(nn.Module):
    """Runs a tower and returns (output, {path of a router: its cache}); leaves the caches empty."""

    def __init__(self, tower: nn.Module):
        super().__init__()
        self.tower = tower
        self.training = tower.training

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, dict[str, Any]]]:
        running, count = RUNNING.forward, len(RUNNING.filled)
        RUNNING.forward = True  # so that no router in it is the outermost, which clears the caches
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
    """Fill the caches from the graph's results; return the towers' outputs."""
    outputs = []
    for tower, (output, left) in zip(towers, results, strict=True):
        for path, entries in left.items():
            router: Any = tower.get_submodule(path)
            for key, value in entries.items():
                router.cache_set(key, value)
        outputs.append(output)
    return outputs
