"""Routers: towers, and modules of one structure inside a model, run as lanes."""

from .balance import Balance, TowerBalance, balance
from .base_router import BaseRouter, RouterError
from .base_tower import BaseTower
from .compile_router import CompileRouter
from .explain import GroupRow, Plan, RouterExplanation
from .fusion import AttentionFusion, GatedFusion, MeanFusion, WeightedFusion
from .tower_group import VMapTowerGroup
from .towers import AttentionTower, GatedTower, PreNormTower, ResidualTower, SequentialTower
from .wide_router import WideRouter

__all__ = [
    "AttentionFusion",
    "AttentionTower",
    "Balance",
    "BaseRouter",
    "BaseTower",
    "CompileRouter",
    "GatedFusion",
    "GatedTower",
    "GroupRow",
    "MeanFusion",
    "Plan",
    "PreNormTower",
    "ResidualTower",
    "RouterError",
    "RouterExplanation",
    "SequentialTower",
    "TowerBalance",
    "VMapTowerGroup",
    "WeightedFusion",
    "WideRouter",
    "balance",
]
