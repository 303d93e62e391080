"""What a capture rests on, and whether it still holds: the only change detection."""

from .modules import ModuleGuard
from .observe import MODULE_TABLES, Observer
from .reads import ATOMS
from .snapshot import Snapshot

__all__ = ["ATOMS", "MODULE_TABLES", "ModuleGuard", "Observer", "Snapshot"]
