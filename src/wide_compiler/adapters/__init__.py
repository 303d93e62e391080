"""Adapters: many fine-tuned variants of one frozen base as the lanes of one wide model."""

from .compile import compile
from .estimate import Estimate
from .lane_batches import LaneBatches
from .lora_library import LoraConfig, LoraModel
from .wide_adapters import WideAdapters

__all__ = ["Estimate", "LaneBatches", "LoraConfig", "LoraModel", "WideAdapters", "compile"]
