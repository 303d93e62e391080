"""Whitelists for NumPy and PyTorch: functions, methods and layers that only compute."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .guards import static_lookup
from .values import Arrayish, Number, Value, list_of, tuple_of

_VIEWS = [
    "reshape",
    "ravel",
    "transpose",
    "swapaxes",
    "squeeze",
    "atleast_1d",
    "atleast_2d",
    "asarray",
    "expand_dims",
    "moveaxis",
    "flip",
]
_NEW = [
    "sum",
    "prod",
    "mean",
    "std",
    "var",
    "median",
    "max",
    "min",
    "amax",
    "amin",
    "ptp",
    "argmax",
    "argmin",
    "any",
    "all",
    "cumsum",
    "cumprod",
    "sort",
    "argsort",
    "dot",
    "vdot",
    "inner",
    "outer",
    "matmul",
    "einsum",
    "tensordot",
    "kron",
    "cross",
    "clip",
    "where",
    "concatenate",
    "stack",
    "vstack",
    "hstack",
    "zeros",
    "ones",
    "full",
    "empty",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "arange",
    "linspace",
    "eye",
    "identity",
    "array",
    "copy",
    "diff",
    "round",
    "around",
    "nan_to_num",
    "real",
    "imag",
    "abs",
    "average",
    "percentile",
    "quantile",
    "count_nonzero",
    "isclose",
    "searchsorted",
    "interp",
    "convolve",
    "trace",
    "tile",
    "repeat",
    "roll",
    "pad",
    "bincount",
    "histogram",
    "unique",
    "tril",
    "triu",
    "diag",
    "fliplr",
    "flipud",
    "nansum",
    "nanmean",
    "nanmax",
    "nanmin",
    "gradient",
    "polyval",
    "argwhere",
    "flatnonzero",
    "meshgrid",
    "logspace",
    "geomspace",
    "correlate",
    "take",
    "compress",
    "nanstd",
]
_LINALG = ["norm", "det", "inv", "solve", "matrix_power", "pinv"]

NUMPY_FUNCTIONS: dict[Any, str] = {}
for _name in _NEW:
    NUMPY_FUNCTIONS[getattr(np, _name)] = "new"
for _name in _VIEWS:
    NUMPY_FUNCTIONS[getattr(np, _name)] = "view"
for _name in _LINALG:
    NUMPY_FUNCTIONS[getattr(np.linalg, _name)] = "new"
NUMPY_FUNCTIONS[np.allclose] = NUMPY_FUNCTIONS[np.array_equal] = "bool"
NUMPY_TYPES = (np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_)

_ARRAY_NEW = [
    "sum",
    "prod",
    "mean",
    "std",
    "var",
    "max",
    "min",
    "argmax",
    "argmin",
    "any",
    "all",
    "cumsum",
    "cumprod",
    "dot",
    "astype",
    "copy",
    "flatten",
    "round",
    "clip",
    "argsort",
    "conj",
    "conjugate",
    "trace",
    "take",
    "repeat",
    "ptp",
    "nonzero",
    "searchsorted",
]
_ARRAY_VIEWS = ["reshape", "ravel", "transpose", "swapaxes", "squeeze", "view"]
ARRAY_METHODS: dict[str, Any] = {
    **dict.fromkeys(_ARRAY_NEW, "new"),
    **dict.fromkeys(_ARRAY_VIEWS, "view"),
    "tolist": "list",
    "item": Number,
    "tobytes": bytes,
    "is_integer": bool,
}
ARRAY_ATTRIBUTES = {"T": "view", "real": "view", "imag": "view", "ndim": int, "size": int, "nbytes": int}

_TORCH = [
    "abs",
    "add",
    "addmm",
    "amax",
    "amin",
    "any",
    "all",
    "argmax",
    "argmin",
    "argsort",
    "bmm",
    "cat",
    "ceil",
    "chunk",
    "clamp",
    "cos",
    "cosh",
    "cumsum",
    "cumprod",
    "diag",
    "div",
    "dot",
    "einsum",
    "eq",
    "erf",
    "exp",
    "expm1",
    "flatten",
    "floor",
    "full_like",
    "ge",
    "gt",
    "isfinite",
    "isnan",
    "le",
    "log",
    "log1p",
    "log2",
    "logsumexp",
    "lt",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mm",
    "mul",
    "mv",
    "ne",
    "neg",
    "norm",
    "ones_like",
    "outer",
    "permute",
    "pow",
    "prod",
    "reciprocal",
    "relu",
    "reshape",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "softmax",
    "log_softmax",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "sub",
    "sum",
    "t",
    "tan",
    "tanh",
    "topk",
    "trace",
    "transpose",
    "tril",
    "triu",
    "unsqueeze",
    "var",
    "where",
    "zeros_like",
]
_TENSOR_ONLY = [
    "T",
    "view",
    "expand",
    "float",
    "double",
    "half",
    "bfloat16",
    "int",
    "long",
    "bool",
    "to",
    "type_as",
    "contiguous",
    "clone",
    "detach",
    "size",
    "dim",
    "numel",
    "flatten",
    "unflatten",
    "repeat",
    "roll",
    "masked_fill",
]
_FUNCTIONAL = [
    "relu",
    "gelu",
    "silu",
    "elu",
    "leaky_relu",
    "softplus",
    "tanh",
    "sigmoid",
    "softmax",
    "log_softmax",
    "linear",
    "layer_norm",
    "normalize",
    "mse_loss",
    "l1_loss",
    "cross_entropy",
    "cosine_similarity",
    "scaled_dot_product_attention",
    "pad",
    "one_hot",
]
TORCH_FUNCTIONS = {getattr(torch, n) for n in _TORCH} | {getattr(F, n) for n in _FUNCTIONAL}
TENSOR_METHODS = {n for n in (*_TORCH, *_TENSOR_ONLY) if hasattr(torch.Tensor, n)} - {"T"}
TENSOR_ATTRIBUTES = {"T", "mT", "shape", "ndim", "dtype", "device", "requires_grad", "is_cuda"}

# Layers that keep no count and draw no numbers; the last ones only where they are not training.
LAYERS = (
    nn.Linear, nn.Identity, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softmax, nn.LogSoftmax, nn.ELU,
    nn.LeakyReLU, nn.Softplus, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Embedding, nn.Conv1d, nn.Conv2d,
    nn.Flatten, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Bilinear, nn.PReLU, nn.Hardtanh,
    nn.ReLU6,
)  # fmt: skip
EVAL_LAYERS = (nn.Dropout, nn.BatchNorm1d, nn.BatchNorm2d)
FORWARDS = {kind: static_lookup(kind, "forward") for kind in (*LAYERS, *EVAL_LAYERS)}

GRAD_MODES = (torch.no_grad, torch.inference_mode)  # contexts that only switch gradients off, and back


class GradMode:
    """Stands for one of these contexts."""


def numpy_result(kind: Any, args: list[Value], receiver: Value | None = None) -> Value:
    """What a NumPy function or method of that kind returns."""
    if kind == "new":
        return Value(Arrayish, fresh=True)
    if kind == "view":
        source = receiver or (args[0] if args else None)
        return Value(Arrayish, fresh=source is not None and source.fresh)
    if kind == "list":
        return list_of(Value(Number))
    return Value(bool if kind == "bool" else kind)


def shape_value() -> Value:
    return list_of(Value(int), tuple)


def tensor_attribute(name: str, receiver: Value) -> Value:
    given = {
        "ndim": int,
        "dtype": torch.dtype,
        "device": torch.device,
        "requires_grad": bool,
        "is_cuda": bool,
    }
    if name == "shape":
        return shape_value()
    return Value(given[name]) if name in given else Value(torch.Tensor, fresh=receiver.fresh)


def tensor_result(name: str, receiver: Value | None) -> Value:
    if name in ("size",):
        return shape_value()
    if name in ("dim", "numel"):
        return Value(int)
    if name in ("chunk", "split", "topk", "sort"):
        return (
            tuple_of([Value(torch.Tensor)] * 2)
            if name in ("topk", "sort")
            else list_of(Value(torch.Tensor), tuple)
        )
    return Value(torch.Tensor)  # perhaps a view: never fresh
