"""Whitelists for PyTorch: pure functions, methods, layers and contexts."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .kinds import Number, words
from .numpy_tables import SHAPE
from .values import Value, sequence, tuple_of

_TORCH = words("""abs add addmm amax amin any all argmax argmin argsort bmm cat ceil chunk clamp cos
 cosh cumsum cumprod diag div dot einsum eq erf exp expm1 flatten floor full_like ge gt isfinite isnan
 le log log1p log2 logsumexp lt matmul max maximum mean min minimum mm mul mv ne neg norm ones_like
 outer permute pow prod reciprocal relu reshape round rsqrt sigmoid sign sin sinh softmax log_softmax
 sort split sqrt square squeeze stack std sub sum t tan tanh topk trace transpose tril triu unsqueeze
 var where zeros_like""")
_TENSOR_ONLY = words("""view expand float double half bfloat16 int long bool to type_as contiguous clone
 detach size dim numel flatten unflatten repeat roll masked_fill item numpy cpu""")
_MAKERS = words("tensor zeros ones full arange linspace eye")  # the result has its own memory
_SHARERS = words("as_tensor asarray from_numpy")  # the result may share an argument's memory
_FUNCTIONAL = words("""relu gelu silu elu leaky_relu softplus tanh sigmoid softmax log_softmax linear
 layer_norm normalize mse_loss l1_loss cross_entropy cosine_similarity scaled_dot_product_attention pad""")
TORCH_FUNCTIONS = {getattr(torch, n) for n in (*_TORCH, *_MAKERS, *_SHARERS)}
TORCH_FUNCTIONS |= {getattr(F, n) for n in _FUNCTIONAL}
TENSOR_METHODS = {n for n in (*_TORCH, *_TENSOR_ONLY) if hasattr(torch.Tensor, n)}
TENSOR_ATTRIBUTES = {
    "shape": SHAPE, "ndim": Value(int), "dtype": Value(torch.dtype), "device": Value(torch.device),
    **dict.fromkeys(("requires_grad", "is_cuda"), Value(bool)),
    **dict.fromkeys(("T", "mT"), lambda held: Value(torch.Tensor, fresh=held.fresh)),
}  # fmt: skip

# Layers without counters and random numbers; EVAL_LAYERS only in eval mode. Their results are new tensors,
# except those of PASSING, which may be the argument itself or a view of it.
LAYERS = (
    nn.Linear, nn.Identity, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softmax, nn.LogSoftmax, nn.ELU,
    nn.LeakyReLU, nn.Softplus, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Embedding, nn.Conv1d, nn.Conv2d,
    nn.Flatten, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Bilinear, nn.PReLU, nn.Hardtanh,
    nn.ReLU6,
)  # fmt: skip
EVAL_LAYERS = (nn.Dropout, nn.BatchNorm1d, nn.BatchNorm2d)
PASSING = (nn.Identity, nn.Flatten, nn.Dropout, nn.AdaptiveAvgPool2d)
FORWARDS: dict[type, Any] = {kind: kind.forward for kind in (*LAYERS, *EVAL_LAYERS)}
# Fields that make a layer modify its argument or weights, and their harmless values.
CHANGING = {"inplace": False, "max_norm": None}

GRAD_MODES = (torch.no_grad, torch.inference_mode)  # contexts that only disable gradients


class GradMode:
    """Represents one of the contexts in `GRAD_MODES`."""


_RESULTS = {
    "dim": Value(int), "numel": Value(int), "item": Value(Number), "size": SHAPE,
    **dict.fromkeys(("topk", "sort"), tuple_of(Value(torch.Tensor), Value(torch.Tensor))),
    **dict.fromkeys(("chunk", "split"), sequence(Value(torch.Tensor))),
}  # fmt: skip


def tensor_result(name: str, receiver: Value | None) -> Value:
    """Return the result of a function or method of that name."""
    if name == "numpy":  # shares the tensor's memory
        return Value(np.ndarray, fresh=receiver is not None and receiver.fresh)
    # The result may be a view, so it is fresh only if a maker returned it.
    return _RESULTS.get(name) or Value(torch.Tensor, fresh=name in _MAKERS)
