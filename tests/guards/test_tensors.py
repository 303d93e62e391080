"""A guard sees whatever would make a recording read or do something else."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from wide_compiler.guards.tensors import LookGuard, TableGuard, TensorGuard


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def inside_vmap():
    with torch._functorch.vmap.vmap_increment_nesting(2, "error"):
        yield


@pytest.mark.parametrize("make", [lambda: torch.randn(4, 5), lambda: nn.Parameter(torch.randn(3, 3))])
def test_the_same_tensor_and_no_other(make):
    x = make()
    guard = TensorGuard([x])
    assert guard.holds([x])
    x.detach().mul_(2)  # new numbers in the same place are what a recording is for
    assert guard.holds([x])
    for other in (x.detach().clone(), x.detach()[:2], x.double(), None, 3.0):
        assert not guard.holds([other])


def test_memory_exchanged_under_a_parameter():
    p = nn.Parameter(torch.randn(3, 3))
    guard = TensorGuard([p])
    memory = p.data
    p.data = memory.t()
    assert not guard.holds([p])
    p.data = memory.clone()
    assert not guard.holds([p])
    p.data = memory
    assert guard.holds([p])
    p.requires_grad_(False)
    assert not guard.holds([p])


@pytest.mark.parametrize(
    "around",
    [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16), Mode, inside_vmap],
    ids=["inference mode", "autocast", "dispatch mode", "vmap"],
)
def test_what_surrounds_the_call(around):
    x = torch.randn(3)
    guard = TensorGuard([x])
    with around():
        assert not guard.holds([x])
    assert guard.holds([x])


def test_a_look_is_that_of_any_plain_tensor_of_the_kind():
    x = torch.randn(3, 4)
    guard = LookGuard([x])
    for other in (x, x.clone(), torch.randn(4, 3).t(), torch.randn(6, 4)[::2]):
        assert guard.holds([other])
    nested = torch.nested.nested_tensor([torch.randn(3, 4)], layout=torch.strided)
    others = (x[:2], x.double(), x.requires_grad_(), nn.Parameter(x), x.to_sparse(), x.to("meta"), nested, 3)
    for other in others:
        assert not guard.holds([other])


def test_a_table_that_was_written_to():
    module = nn.Linear(2, 2)
    guard = TableGuard([vars(module), module._parameters, module._modules])
    assert guard.holds() and guard.holds()
    for write in (
        lambda: module.eval(),
        lambda: setattr(module, "weight", nn.Parameter(torch.ones(2, 2))),
        lambda: module.add_module("inner", nn.ReLU()),
        lambda: module._parameters.pop("bias"),
    ):
        write()
        assert not guard.holds()
        guard.remember()
        assert guard.holds()
