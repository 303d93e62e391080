"""Loops over tensors and modules of PyTorch."""

import torch
from torch import nn

from ._table import pattern


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def tensors(n=24):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, generator=generator) for _ in range(n)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.scale = 0.5

    def forward(self, x):
        return torch.tanh(self.inner(x)) * self.scale + x


@pattern("torch vmap", lambda n=24: (mlp().requires_grad_(False), tensors(n)), large=512)
def one_module(model, xs):
    """One module over many tensors."""
    return [model(x) for x in xs]


@pattern("plain", lambda n=24: (Net(), tensors(n)), large=512)
def module_with_gradients(model, xs):
    """A module whose results carry gradients, each by a graph of its own."""
    torch.manual_seed(0)
    nn.init.constant_(model.inner.weight, 0.1)
    nn.init.constant_(model.inner.bias, 0.1)
    with torch.enable_grad():
        return [model(x) for x in xs]


@pattern("torch vmap", lambda n=24: (tensors(n),), large=512)
def tensor_function(xs):
    """Functions of PyTorch."""
    return [torch.softmax(x, dim=0) * 2 for x in xs]


@pattern("torch vmap", lambda n=24: (torch.stack(tensors(n)),), large=512)
def rows_of_a_tensor(x):
    """The rows of a tensor."""
    return [(row - row.mean()) / row.std() for row in x]


@pattern("torch vmap", lambda n=24: (mlp(), tensors(n)), large=512)
def without_gradients(model, xs):
    """Under no_grad."""
    with torch.no_grad():
        return [model(x) for x in xs]


@pattern(
    "wide model", lambda n=4: ([mlp(i).requires_grad_(False) for i in range(n)], tensors(2)[0]), large=32
)
def many_modules(models, x):
    """Many modules of one architecture, one input."""
    return [m(x) for m in models]


@pattern("plain", lambda n=24: (nn.Dropout(0.5), tensors(n)), reset=lambda: torch.manual_seed(0), large=64)
def dropout_in_training(drop, xs):
    """Dropout in training."""
    return [drop(x) for x in xs]


@pattern("plain", lambda n=24: (nn.BatchNorm1d(8), [t[None].repeat(4, 1) for t in tensors(n)]), large=64)
def batch_norm_in_training(norm, xs):
    """A layer that keeps running statistics."""
    return [norm(x * (1 + x[0, 0])) for x in xs]


@pattern("plain", lambda n=24: (tensors(n),), large=64)
def tensor_in_place(xs):
    """In-place operations on tensors."""
    out = []
    for x in xs:
        x.add_(1.0)
        out.append(x.sum())
    return out


@pattern("plain", lambda n=24: (tensors(n),), large=64)
def branch_on_a_tensor(xs):
    """A branch on a tensor's value."""
    return [x * 2 if x[0] > 0 else x + 1 for x in xs]


def quiet(model, x):
    with torch.no_grad():
        return torch.tanh(model(x))


def inferred(model, x):
    with torch.inference_mode():
        y = model(x)
    return y


def partly_quiet(model, x):
    with torch.no_grad():
        target = model(x)
    return (model(x * 2.0) - target).sum()


@pattern("torch vmap", lambda n=24: (mlp(), tensors(n)), large=512)
def no_grad_in_the_body(model, xs):
    """A function that switches gradients off."""
    return [quiet(model, x) for x in xs]


@pattern("torch vmap", lambda n=24: (mlp(), tensors(n)), large=512)
def inference_mode_in_the_body(model, xs):
    """A function that runs in inference mode."""
    return [inferred(model, x) for x in xs]


@pattern("plain", lambda n=24: (mlp(), tensors(n)), large=512)
def no_grad_in_part_of_the_body(model, xs):
    """Gradients off in one part of the body, on in the other."""
    with torch.enable_grad():
        return [partly_quiet(model, x) for x in xs]


@pattern("torch vmap", lambda n=24: (mlp().requires_grad_(False), tensors(n)), large=512)
def no_grad_in_part_of_a_frozen_body(model, xs):
    """Gradients off in one part of the body, of a module that has none."""
    return [partly_quiet(model, x) for x in xs]


@pattern("torch vmap", lambda n=24: (mlp(), tensors(n)), large=512)
def no_grad_in_a_loop(model, xs):
    """A loop that fills a list under no_grad."""
    out = []
    for x in xs:
        with torch.no_grad():
            y = model(x)
            out.append(y * 2.0)
    return out


@pattern("plain", lambda n=24: (mlp(), tensors(n)), large=64)
def another_context_in_the_body(model, xs):
    """Another context in the body."""
    out = []
    for x in xs:
        with torch.autocast("cpu", enabled=False):
            out.append(model(x))
    return out
