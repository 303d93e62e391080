"""Refusals: the error says what it must, and nothing that was given has changed."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    found = dict(module.named_parameters(remove_duplicate=False))
    found |= dict(module.named_buffers(remove_duplicate=False))
    for path, inner in module.named_modules():
        found |= {f"{path}.{k}": v for k, v in vars(inner).items() if isinstance(v, torch.Tensor)}
    return found


def picture(*modules: nn.Module) -> dict[str, Any]:
    """Everything a refused call must leave alone: weights, buffers, memory, flags, hooks, random state."""
    seen: dict[str, Any] = {"rng": torch.get_rng_state().tolist(), "grad mode": torch.is_grad_enabled()}
    for i, module in enumerate(modules):
        for path, tensor in _tensors(module).items():
            if not nn.parameter.is_lazy(tensor):
                bits = tensor.detach().double().tolist()
                grad = None if tensor.grad is None else tensor.grad.tolist()
                seen[f"{i}: {path}"] = (
                    repr(bits),
                    tensor.dtype,
                    tensor.requires_grad,
                    grad,
                    tensor.data_ptr(),
                )
        for path, inner in module.named_modules():
            hooks = sum(len(v) for k, v in vars(inner).items() if "_hooks" in k and isinstance(v, dict))
            seen[f"{i}: {path} flags"] = (inner.training, hooks, "forward" in vars(inner))
    return seen


@contextlib.contextmanager
def refused(error: type[BaseException], *says: str, of: Any = ()) -> Iterator[Any]:
    """The block raises `error`, whose message has every one of `says`; the modules `of` stay as they are."""
    modules = [of] if isinstance(of, nn.Module) else [m for m in of if isinstance(m, nn.Module)]
    before = picture(*modules)
    with pytest.raises(error) as caught:
        yield caught
    after = picture(*modules)
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    assert not changed, f"a refused call has changed {changed}"
    missing = [words for words in says if words not in str(caught.value)]
    assert not missing, f"{caught.value!r} does not say {missing}"
