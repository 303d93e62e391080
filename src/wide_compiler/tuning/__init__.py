"""Tuning: measure the ways to run a call, choose one, remember the choice on disk."""

from .clock import interleaved
from .replay import Replay
from .store import Store
from .trial import Trial

__all__ = ["Replay", "Store", "Trial", "interleaved"]
