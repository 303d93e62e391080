"""Configuration: options of a wide model, and environment variables."""

from .settings import PREFIX, SETTINGS, variable
from .wide_config import COMPILE_MODES, WideConfig, check_strategies

__all__ = ["COMPILE_MODES", "PREFIX", "SETTINGS", "WideConfig", "check_strategies", "variable"]
