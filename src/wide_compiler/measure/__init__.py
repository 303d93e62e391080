"""Measuring: contests that check candidates for correctness and time them."""

from .clock import Clock, interleaved, use_clock
from .contest import Candidate, Contest, Decision, Written
from .store import Store

__all__ = ["Candidate", "Clock", "Contest", "Decision", "Store", "Written", "interleaved", "use_clock"]
