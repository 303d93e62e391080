"""The zoo: architectures of every kind, tiny, written as people write them."""

import importlib
import pkgutil

from .case import CASES, Case, zoo_case

for _module in pkgutil.iter_modules(__path__):
    if _module.name != "case" and not _module.name.startswith("test_"):
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["CASES", "Case", "zoo_case"]
