"""Turn a captured graph into a lane graph, a pure function of (states, inputs)."""

from .attempt import ReadsLayout, WidenFailed
from .builder import Builder, LaneScalar, Val
from .lane_graph import LaneGraph, NodeRow
from .opaque_nodes import LAYOUTS, MEMBERS, run_in_layout
from .per_lane import lent
from .rules import RULES, rule
from .walk import Probe, widen

__all__ = [
    "LAYOUTS",
    "MEMBERS",
    "RULES",
    "Builder",
    "LaneGraph",
    "LaneScalar",
    "NodeRow",
    "Probe",
    "ReadsLayout",
    "Val",
    "WidenFailed",
    "lent",
    "rule",
    "run_in_layout",
    "widen",
]
