"""Routers: towers, and modules of one structure inside a model, run as lanes."""

from .balance import Balance, TowerBalance, balance
from .base_router import BaseRouter, RouterError
from .base_tower import BaseTower
from .compile_router import CompileRouter
from .fusion import AttentionFusion, GatedFusion, MeanFusion, WeightedFusion
from .router_explanation import GroupRow, RouterExplanation, RouterPlan
from .tower_group import VMapTowerGroup
from .towers import AttentionTower, GatedTower, PreNormTower, ResidualTower, SequentialTower
from .wide_router import WideRouter

Plan = RouterPlan  # its shorter name, which is kept

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
    "RouterPlan",
    "SequentialTower",
    "TowerBalance",
    "VMapTowerGroup",
    "WeightedFusion",
    "WideRouter",
    "balance",
]
