"""Turn a captured graph into a lane graph, a pure function of (states, inputs)."""
# ruff: noqa: F401  (what other folders import from here)

from .attempt import ReadsLayout, WidenFailed
from .lane_graph import LaneGraph, NodeRow
from .opaque_nodes import LAYOUTS, MEMBERS, run_in_layout
from .per_lane import lent
from .rules import RULES
from .walk import Probe, widen
