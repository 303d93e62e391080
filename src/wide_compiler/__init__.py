"""Write it for one; run it for N: fuse N PyTorch models of one architecture into one wide model."""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from .version import VERSION, __version__

if TYPE_CHECKING:
    from . import primitives, routers, signals, training, xcs  # noqa: F401
    from .api import WideBuilder, compile
    from .config import WideConfig
    from .errors import (
        AlignmentError,
        ArgumentError,
        CheckpointError,
        InputError,
        LaneIndexError,
        MissingExtraError,
        MissingFileError,
        SampleError,
        SaveError,
        UnknownNameError,
        UnsupportedError,
        UsageError,
        ValidationError,
        WideError,
        WrongTypeError,
    )
    from .explain import Explanation
    from .lanes import pack, pack_inputs, stack, unpack, unpack_outputs, unstack
    from .model import WideModel
    from .primitives import (
        WideAttention,
        WideBatchNorm1d,
        WideBatchNorm2d,
        WideBatchNorm3d,
        WideConv1d,
        WideConv2d,
        WideConv3d,
        WideConvTranspose1d,
        WideConvTranspose2d,
        WideConvTranspose3d,
        WideDropout,
        WideEmbedding,
        WideEmbeddingBag,
        WideGroupNorm,
        WideGRU,
        WideInstanceNorm,
        WideLayerNorm,
        WideLinear,
        WideLSTM,
        WidePReLU,
        WideRMSNorm,
        WideRNN,
    )
    from .registry import REGISTRY, WideRegistry, auto_register_primitives, register

    TracedWideModel = WideModel

__all__ = [
    "REGISTRY",
    "VERSION",
    "AlignmentError",
    "ArgumentError",
    "CheckpointError",
    "Explanation",
    "InputError",
    "LaneIndexError",
    "MissingExtraError",
    "MissingFileError",
    "SampleError",
    "SaveError",
    "TracedWideModel",
    "UnknownNameError",
    "UnsupportedError",
    "UsageError",
    "ValidationError",
    "WideAttention",
    "WideBatchNorm1d",
    "WideBatchNorm2d",
    "WideBatchNorm3d",
    "WideBuilder",
    "WideConfig",
    "WideConv1d",
    "WideConv2d",
    "WideConv3d",
    "WideConvTranspose1d",
    "WideConvTranspose2d",
    "WideConvTranspose3d",
    "WideDropout",
    "WideEmbedding",
    "WideEmbeddingBag",
    "WideError",
    "WideGRU",
    "WideGroupNorm",
    "WideInstanceNorm",
    "WideLSTM",
    "WideLayerNorm",
    "WideLinear",
    "WideModel",
    "WidePReLU",
    "WideRMSNorm",
    "WideRNN",
    "WideRegistry",
    "WrongTypeError",
    "__version__",
    "auto_register_primitives",
    "compile",
    "pack",
    "pack_inputs",
    "primitives",
    "register",
    "stack",
    "unpack",
    "unpack_outputs",
    "unstack",
]

# The module of each name of `__all__`; names that end in Error are in `errors`, others are primitives.
_HOMES = {
    "api": ("WideBuilder", "compile"),
    "config": ("WideConfig",),
    "explain": ("Explanation",),
    "lanes": ("pack", "pack_inputs", "stack", "unpack", "unpack_outputs", "unstack"),
    "model": ("TracedWideModel", "WideModel"),
    "registry": ("REGISTRY", "WideRegistry", "auto_register_primitives", "register"),
}


def __getattr__(name: str) -> Any:
    """Import a public name or subpackage on first use, because importing all of them takes a second."""
    if name in _rooms():
        value = importlib.import_module(f"{__name__}.{name}")
    elif name in __all__:
        other = "errors" if name.endswith("Error") else "primitives"
        home = next((home for home, names in _HOMES.items() if name in names), other)
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_rooms()})


def _rooms() -> set[str]:
    return {module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")}
