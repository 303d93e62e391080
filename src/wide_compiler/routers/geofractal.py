"""Drop-in replacements for geofractal's routers and towers: only the import line changes.

    from wide_compiler.routers.geofractal import BaseRouter, BaseTower, WideRouter

Two differences from `wide_compiler.routers`: of a tower that returns `(opinion, features)` only the opinion
is kept, and `wide_forward` takes the names before the mask.
"""

from typing import Any

from . import wide_router
from .base_router import BaseRouter
from .base_tower import BaseTower

__all__ = ["BaseRouter", "BaseTower", "WideRouter"]


class GeofractalRouter(wide_router.WideRouter):
    """`wide_compiler.routers.WideRouter` for towers that return `(opinion, features)`."""

    def wide_forward(  # type: ignore[override]
        self, x: Any, tower_names: Any = None, mask: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the towers' opinions by name."""
        outputs = super().wide_forward(x, mask, tower_names, **kwargs)
        return {name: out[0] if isinstance(out, tuple) else out for name, out in outputs.items()}


WideRouter = GeofractalRouter  # the name in code written for geofractal
