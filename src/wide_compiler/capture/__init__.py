"""N models -> one graph and N states; same architecture, or the first difference by path."""

from .align import check_models, structure
from .captured import OUTPUT_TENSOR, Captured
from .export import export_member
from .failure import CaptureFailed
from .opaque import OPAQUE, OpaqueCall
from .skeleton import clone_member, make_skeleton, materialize
from .state import Slot, canonical_names, slots
from .variants import group_by_variant
from .zipping import module_path, zip_variants

__all__ = [
    "OPAQUE",
    "OUTPUT_TENSOR",
    "CaptureFailed",
    "Captured",
    "OpaqueCall",
    "Slot",
    "canonical_names",
    "check_models",
    "clone_member",
    "export_member",
    "group_by_variant",
    "make_skeleton",
    "materialize",
    "module_path",
    "slots",
    "structure",
    "zip_variants",
]
