"""Write it for one; run it for N: fuse N PyTorch models of one architecture into one wide model."""

from . import primitives
from .api import WideBuilder, compile
from .config import WideConfig
from .errors import (
    AlignmentError,
    CheckpointError,
    InputError,
    SampleError,
    SaveError,
    UnsupportedError,
    ValidationError,
    WideError,
)
from .lanes import pack, pack_inputs, stack, unpack, unpack_outputs, unstack
from .model import Explanation, WideModel
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
from .registry import REGISTRY, WideRegistry, register
from .version import __version__

# The name of the first WideCompiler for the same class.
TracedWideModel = WideModel

__all__ = [
    "REGISTRY",
    "AlignmentError",
    "CheckpointError",
    "Explanation",
    "InputError",
    "SampleError",
    "SaveError",
    "TracedWideModel",
    "UnsupportedError",
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
    "__version__",
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
