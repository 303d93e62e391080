"""Towers and alike branches, run as lanes."""

from .base_router import BaseRouter, RouterError
from .base_tower import BaseTower
from .explain import GroupRow, RouterExplanation
from .tower_group import VMapTowerGroup
from .wide_router import WideRouter

__all__ = [
    "BaseRouter",
    "BaseTower",
    "GroupRow",
    "RouterError",
    "RouterExplanation",
    "VMapTowerGroup",
    "WideRouter",
]
