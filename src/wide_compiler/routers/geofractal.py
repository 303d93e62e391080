"""Routers and towers for code that was written for geofractal's: only its import lines change.

    from wide_compiler.routers.geofractal import BaseRouter, BaseTower, WideRouter

Three things differ from `wide_compiler.routers`: of a tower that gives `(opinion, features)` the opinion is
taken; components may be put into `router.components` directly; `wide_forward` takes names before the mask.
"""

from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import nn

from . import base_router, base_tower, wide_router


class Components(MutableMapping[str, nn.Module]):
    """A router's own submodules, by name; what is put in here is a submodule."""

    def __init__(self, router: nn.Module):
        self.router = router

    def __getitem__(self, name: str) -> nn.Module:
        module = self.router._modules[name]
        if module is None:
            raise KeyError(name)
        return module

    def __setitem__(self, name: str, module: nn.Module) -> None:
        setattr(self.router, name, module)

    def __delitem__(self, name: str) -> None:
        delattr(self.router, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, module in self.router._modules.items() if module is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _WithComponents:
    @property
    def components(self) -> Components:
        return Components(self)  # type: ignore[arg-type]


class BaseRouter(_WithComponents, base_router.BaseRouter):
    """`wide_compiler.routers.BaseRouter` whose components can be set directly."""


class BaseTower(_WithComponents, base_tower.BaseTower):
    """`wide_compiler.routers.BaseTower` whose components can be set directly."""


class WideRouter(_WithComponents, wide_router.WideRouter):
    """`wide_compiler.routers.WideRouter` that takes the opinion of towers that also give their features."""

    def wide_forward(  # type: ignore[override]
        self, x: Any, tower_names: Any = None, mask: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The towers' opinions by name."""
        outputs = super().wide_forward(x, mask, tower_names, **kwargs)
        return {name: out[0] if isinstance(out, tuple) else out for name, out in outputs.items()}
