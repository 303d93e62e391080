"""Functions and modules that run N lanes of one layer at once; the lane axis is dimension 0.

A function `wide_*` takes activations `[N, B, ...]` and the members' weights stacked to `[N, *member_shape]`.
A function `shared_*` takes an input without a lane axis that all lanes read. A module `Wide*` holds the
stacked weights of N members: `WideLinear.from_modules(members)`.
"""

from . import (  # noqa: F401  (imported to register their rules)
    dims,
    folds,
    indexing,
    losses,
    matmul,
    pointwise,
    random,
    reductions,
    shapes,
)
from ._lanes import resolve
from ._module import WideModule
from .attention import WideAttention, wide_sdpa
from .channel_norms import (
    WideBatchNorm1d,
    WideBatchNorm2d,
    WideBatchNorm3d,
    WideGroupNorm,
    WideInstanceNorm,
    WideInstanceNorm1d,
    WideInstanceNorm2d,
    WideInstanceNorm3d,
    wide_batch_norm,
    wide_group_norm,
    wide_instance_norm,
)
from .conv import shared_conv, wide_conv, wide_conv_transpose
from .conv_modules import (
    WideConv1d,
    WideConv2d,
    WideConv3d,
    WideConvTranspose1d,
    WideConvTranspose2d,
    WideConvTranspose3d,
)
from .dropout import WideDropout, wide_dropout
from .embedding import WideEmbedding, shared_embedding, wide_embedding
from .embedding_bag import WideEmbeddingBag, wide_embedding_bag
from .layer_norm import WideLayerNorm, WideRMSNorm, wide_layer_norm, wide_rms_norm
from .linear import WideLinear, shared_linear, wide_linear
from .prelu import WidePReLU, wide_prelu
from .rnn import wide_gru, wide_lstm, wide_rnn
from .rnn_modules import WideGRU, WideLSTM, WideRNN

PRIMITIVES: tuple[type[WideModule], ...] = tuple(
    kind
    for kind in dict(globals()).values()
    if isinstance(kind, type) and issubclass(kind, WideModule) and kind not in (WideModule, WideInstanceNorm)
)

__all__ = [
    "PRIMITIVES",
    "WideAttention",
    "WideBatchNorm1d",
    "WideBatchNorm2d",
    "WideBatchNorm3d",
    "WideConv1d",
    "WideConv2d",
    "WideConv3d",
    "WideConvTranspose1d",
    "WideConvTranspose2d",
    "WideConvTranspose3d",
    "WideDropout",
    "WideEmbedding",
    "WideEmbeddingBag",
    "WideGRU",
    "WideGroupNorm",
    "WideInstanceNorm",
    "WideInstanceNorm1d",
    "WideInstanceNorm2d",
    "WideInstanceNorm3d",
    "WideLSTM",
    "WideLayerNorm",
    "WideLinear",
    "WideModule",
    "WidePReLU",
    "WideRMSNorm",
    "WideRNN",
    "resolve",
    "shared_conv",
    "shared_embedding",
    "shared_linear",
    "wide_batch_norm",
    "wide_conv",
    "wide_conv_transpose",
    "wide_dropout",
    "wide_embedding",
    "wide_embedding_bag",
    "wide_group_norm",
    "wide_gru",
    "wide_instance_norm",
    "wide_layer_norm",
    "wide_linear",
    "wide_lstm",
    "wide_prelu",
    "wide_rms_norm",
    "wide_rnn",
    "wide_sdpa",
]
