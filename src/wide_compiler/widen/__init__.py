"""Captured graph -> lane graph, a pure function of (states, inputs)."""

from .attempt import ReadsLayout, WidenFailed
from .builder import Builder, LaneScalar, Val
from .lane_graph import LaneGraph, Row
from .opaque_nodes import MEMBERS
from .per_lane import lent
from .rules import RULES, rule
from .walk import Probe, widen

__all__ = [
    "MEMBERS",
    "RULES",
    "Builder",
    "LaneGraph",
    "LaneScalar",
    "Probe",
    "ReadsLayout",
    "Row",
    "Val",
    "WidenFailed",
    "lent",
    "rule",
    "widen",
]
