"""Capture N models as one graph and N states; raises for the first difference in architecture."""
# ruff: noqa: F401  (what other folders import from here)

import warnings

from .align import check_models, structure
from .captured import Captured
from .failure import CaptureFailed, HasEffects
from .lock import CAPTURE
from .member_export import derive_capture, export_member
from .observation import Observation, observe_member
from .opaque import OPAQUE, OpaqueCall
from .skeleton import clone_member, clone_members, make_skeleton, materialize
from .state import Slot, canonical_names, slots
from .variants import group_by_variant
from .zipping import module_path, zip_variants

# A warning of torch.export about recurrent layers, whose weight lists are updated with their parameters.
warnings.filterwarnings("ignore", r"The tensor attributes? self\.member\.", UserWarning)
