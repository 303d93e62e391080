"""Recording and replay of calls, for wide calls, training steps and jit."""

from .recording import Replay

__all__ = ["Replay"]
