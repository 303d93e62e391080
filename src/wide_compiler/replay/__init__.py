"""A recorded call run again: the only recording, for wide calls, training steps and jit."""

from .recording import Replay

__all__ = ["Replay"]
