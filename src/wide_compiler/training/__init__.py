"""Training: all lanes in one step."""

from .step import TrainStep

__all__ = ["TrainStep"]
