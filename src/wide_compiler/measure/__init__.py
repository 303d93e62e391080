"""Measure: which way to run a call is right, and fastest here. The only contest, clock and comparer."""

from .clock import Clock, interleaved, use_clock
from .contest import Candidate, Contest, Decision
from .store import Store

__all__ = ["Candidate", "Clock", "Contest", "Decision", "Store", "interleaved", "use_clock"]
