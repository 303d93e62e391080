"""Change detection: what a capture read, and whether it is still the same."""

from .module_guard import ModuleGuard
from .observe import MODULE_TABLES, Observer
from .reads import ATOMS
from .snapshot import Snapshot

__all__ = ["ATOMS", "MODULE_TABLES", "ModuleGuard", "Observer", "Snapshot"]
