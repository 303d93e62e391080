"""The JAX peer: `jit(vmap(model))` with the same weights and input, where JAX is installed."""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.func import stack_module_state

from .problem import BenchmarkCandidate, Problem

# JAX runs asynchronously, like CUDA: one timed call runs the function this many times, then waits once.
REPEATS = 10


def knows(problem: Problem) -> bool:
    """Return whether JAX is installed and this model has a JAX version, which is for inference only."""
    workload = problem.workload
    known = not problem.train and workload.kind == "model" and workload.name in _MODELS
    return known and importlib.util.find_spec("jax") is not None


def build(problem: Problem) -> BenchmarkCandidate:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch uses the same GPU
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    device = jax.devices("gpu" if problem.cuda else "cpu")[0]
    tensors = {name: jax.device_put(array, device) for name, array in _arrays(problem).items()}
    x = jax.device_put(problem.x.cpu().numpy(), device)
    function = jax.jit(jax.vmap(_MODELS[problem.workload.name]))

    def call() -> Any:
        for _ in range(REPEATS):
            output = function(tensors, x)
        return jax.block_until_ready(output)

    def results() -> dict[str, list[torch.Tensor]]:
        return {"outputs": [torch.from_numpy(np.array(call())).to(problem.device)]}

    return BenchmarkCandidate(call, results, repeats=REPEATS)


def _arrays(problem: Problem) -> dict[str, np.ndarray]:
    """Return the stacked tensors by name; linear weights are transposed to `[N, in, out]`."""
    parameters, buffers = stack_module_state(problem.members)
    arrays = {name: t.detach().cpu().numpy() for name, t in {**parameters, **buffers}.items()}
    return {
        name: np.ascontiguousarray(a.swapaxes(1, 2)) if name.endswith("weight") and a.ndim == 3 else a
        for name, a in arrays.items()
    }


def _linear(p: dict[str, Any], name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def _mlp(p: dict[str, Any], x: Any) -> Any:
    import jax

    return _linear(p, "fc2", jax.nn.relu(_linear(p, "fc1", x)))


def _deep_mlp(p: dict[str, Any], x: Any) -> Any:
    import jax

    for layer in range(sum(name.endswith("weight") for name in p)):
        x = jax.nn.gelu(_linear(p, f"layers.{layer}", x), approximate=False)
    return x


def _conv(p: dict[str, Any], name: str, x: Any) -> Any:
    from jax import lax

    layout = ("NCHW", "OIHW", "NCHW")
    y = lax.conv_general_dilated(x, p[f"{name}.weight"], (1, 1), "SAME", dimension_numbers=layout)
    return y + p[f"{name}.bias"][:, None, None]


def _batch_norm(p: dict[str, Any], name: str, x: Any) -> Any:
    from jax import lax

    scale = p[f"{name}.weight"] * lax.rsqrt(p[f"{name}.running_var"] + 1e-5)
    return (x - p[f"{name}.running_mean"][:, None, None]) * scale[:, None, None] + p[f"{name}.bias"][
        :, None, None
    ]


def _resblock(p: dict[str, Any], x: Any) -> Any:
    import jax

    y = jax.nn.relu(_batch_norm(p, "bn1", _conv(p, "conv1", x)))
    return jax.nn.relu(_batch_norm(p, "bn2", _conv(p, "conv2", y)) + x)


def _layer_norm(p: dict[str, Any], name: str, x: Any) -> Any:
    from jax import lax

    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def _block(p: dict[str, Any], x: Any, heads: int = 8) -> Any:
    import jax

    batch, length, width = x.shape
    qkv = _linear(p, "qkv", _layer_norm(p, "norm1", x)).reshape(batch, length, 3, heads, width // heads)
    mixed = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
    x = x + _linear(p, "proj", mixed.reshape(batch, length, width))
    hidden = jax.nn.gelu(_linear(p, "up", _layer_norm(p, "norm2", x)), approximate=False)
    return x + _linear(p, "down", hidden)


_MODELS: dict[str, Callable[..., Any]] = {
    "mlp": _mlp,
    "deep_mlp": _deep_mlp,
    "big_mlp": _mlp,
    "resblock": _resblock,
    "block": _block,
}
