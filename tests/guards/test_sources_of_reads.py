"""More kinds of reads, in modules of their own: whatever is changed between two calls is followed."""

import importlib.util

import pytest
import torch
from torch import nn

import wide_compiler
from guards.sources_of_reads import SOURCES
from nightly import one_of
from wide_compiler import WideConfig
from wide_compiler.routers import BaseTower, CompileRouter, WideRouter

UNTUNED = WideConfig(tune_seconds=0)
N = 3
# Answered by the members' own Python: what they ask for is another thing while a capture runs.
LOOPS = {"backends flag attr", "is_inference_mode", "cached_property overwritten"}
# A parameter that is not the members' own gets its gradient from them alone.
LOOPS |= {"a module held in a global", "a global module's"}
# A number read out of a tensor keeps branches of one model apart.
LOOPS |= {"tensor item"}


class Member(BaseTower):
    def __init__(self, name, read):
        super().__init__(name)
        self.fc, self.read = nn.Linear(3, 3), read

    def forward(self, x):
        return self.read(self.fc(x))


class Branches(nn.Module):
    def __init__(self, members):
        super().__init__()
        self.branches = nn.ModuleList(members)

    def forward(self, x):
        return tuple(branch(x) for branch in self.branches)


def by_compile(members):
    wide = wide_compiler.compile(members, torch.randn(2, 3), config=UNTUNED)
    return wide.shared, lambda: wide.explain(measure=False).way == "wide"


def by_wide_router(members):
    router = WideRouter("towers", config=UNTUNED)
    for member in members:
        router.attach(member.name, member)
    return (
        lambda x: list(router(x).values()),
        lambda: any(row.how == "together" for row in router.explain().rows),
    )


def by_compile_router(members):
    model = Branches(members)
    planned = CompileRouter.from_module(model, torch.randn(2, 3), config=UNTUNED).compile()
    return planned, lambda: planned is not model and bool(planned.plan.together)


DOORS = (by_compile, by_wide_router, by_compile_router)
# Every kind by `compile`, and by one of the routers (by day half of them).
CASES = [(name, by_compile) for name in SOURCES]
CASES += one_of(2, [(name, DOORS[1 + i // 2 % 2]) for i, name in enumerate(SOURCES)])


@pytest.fixture
def world(request, tmp_path):
    path = tmp_path / "kind_of_read.py"
    path.write_text(SOURCES[request.param])
    spec = importlib.util.spec_from_file_location("kind_of_read", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    changed = []
    change = module.change
    module.change = lambda: (changed.append(1), change())
    yield module
    if changed and hasattr(module, "undo"):
        module.undo()


@pytest.mark.parametrize(
    ("world", "door"), CASES, indirect=["world"], ids=[f"{name}-{door.__name__}" for name, door in CASES]
)
def test_a_change_is_followed(world, door, request):
    members = [Member(f"t{i}", world.read) for i in range(N)]
    call, runs_wide = door(members)
    x = torch.randn(2, 3) + 1
    before = [member(x) for member in members]
    for _ in range(2):
        torch.testing.assert_close(list(call(x)), before)
    assert runs_wide() or any(name in request.node.name for name in LOOPS)
    world.change()
    after = [member(x) for member in members]
    assert not all(torch.equal(a.double(), b.double()) for a, b in zip(before, after, strict=True))
    for _ in range(2):
        torch.testing.assert_close(list(call(x)), after)
