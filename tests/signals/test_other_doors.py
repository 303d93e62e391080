"""While workers run a hook of ours sees all modules: `jit`, wide models and routers take their fast paths."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as pytorch

import wide_compiler
import wide_compiler.signals as gt
from routers.towers import AT_ONCE, Mlp
from wide_compiler import WideConfig, oracle
from wide_compiler.global_hooks import foreign_hooks
from wide_compiler.routers import CompileRouter, WideRouter
from wide_compiler.xcs import Config, jit

QUICK = WideConfig(tune_seconds=0)
X = torch.randn(3, 6)


def models(n=4):
    return [nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)) for _ in range(n)]


def loop(members, x):
    with torch.no_grad():
        return [member(x) for member in members]


def compiled_loop():
    return jit(loop, config=Config(measure=False))


def runs(fast):
    return next(iter(fast.stats().values())).get("wide model", 0)


def close(got, want):
    torch.testing.assert_close(list(got), list(want))


def test_the_hook_is_known_as_ours(workers):
    assert len(pytorch._global_forward_pre_hooks) == 1 and not foreign_hooks()


def test_jit_over_modules(workers):
    members, fast = models(), compiled_loop()
    for i in range(3):
        close(fast(members, X), loop(members, X))
        assert runs(fast) == i + 1
    assert "hook" not in str(fast.explain())


def test_jit_over_modules_compiled_before_the_workers_and_used_after_them(workers):
    members, fast = models(), compiled_loop()
    gt.shutdown()
    close(fast(members, X), loop(members, X))
    gt.cpu_workers(4)
    close(fast(members, X), loop(members, X))
    gt.shutdown()
    close(fast(members, X), loop(members, X))
    assert runs(fast) == 3
    gt.cpu_workers(4)


@pytest.mark.parametrize("register", ["register_module_forward_hook", "register_module_forward_pre_hook"])
def test_jit_under_a_hook_of_somebody_else_beside_ours(workers, register):
    members, fast, seen = models(), compiled_loop(), []
    close(fast(members, X), loop(members, X))
    handle = getattr(pytorch, register)(lambda module, *rest: seen.append(module))
    try:
        assert foreign_hooks()
        late = compiled_loop()
        for one in (fast, late):
            seen.clear()
            close(one(members, X), loop(members, X))
            assert len(seen) == 2 * 4 * len(members)  # every call of every module, in both
        assert "a global module hook is set" in str(late.explain())
    finally:
        handle.remove()
    close(fast(members, X), loop(members, X))
    assert not foreign_hooks()
    close((after := compiled_loop())(members, X), loop(members, X))
    assert runs(after) == 1


def test_jit_over_modules_that_are_given_handles(workers):
    members, fast = models(), compiled_loop()
    want = loop(members, X)
    close(fast(members, X), want)
    handle = gt.tensor(X.tolist())
    outputs = fast(members, handle)
    assert all(isinstance(out, gt.SignalTensor) for out in outputs)
    close(map(plain, outputs), want)
    assert all(
        isinstance(p, gt.SignalTensor) for p in members[0].parameters()
    )  # they live on the workers now
    close(map(plain, fast(members, handle)), want)
    assert runs(fast) == 1


def plain(handle):
    return torch.tensor(handle.tolist())


def test_a_wide_model_is_compiled_called_and_trained(workers):
    members = models()
    wide = wide_compiler.compile(members, X, config=QUICK)
    explanation = wide.explain(measure=False)
    assert explanation.coverage == 1.0 and not explanation.counts.get("loop")
    close(wide.shared(X), [m(X) for m in members])
    inputs = [((torch.randn(5, 6),), {}) for _ in members]
    oracle.compare(members, wide, inputs, gradients=True, learning_rate=0.1).check(rtol=1e-4)
    packed = wide(wide_compiler.pack([X] * len(members)))  # through the hook, as a module
    close(wide_compiler.unpack(packed, len(members)), [m(X) for m in members])
    traced = torch.compile(wide.shared, backend="eager", fullgraph=True)
    close(traced(X), [m(X) for m in members])


def test_a_wide_model_from_before_the_workers(workers):
    members = models()
    gt.shutdown()
    wide = wide_compiler.compile(members, X, config=QUICK)
    close(wide.shared(X), [m(X) for m in members])
    gt.cpu_workers(4)
    close(wide.shared(X), [m(X) for m in members])
    close(wide.stacked(torch.stack([X] * 4)), [m(X) for m in members])
    assert wide.explain(measure=False).coverage == 1.0


def test_towers_of_a_router(workers):
    router = WideRouter("r", config=AT_ONCE)
    for i in range(4):
        router.attach(f"t{i}", Mlp(f"t{i}"))
    for _ in range(2):
        for name, out in router(X).items():
            torch.testing.assert_close(out, router[name](X))
        assert router.explain().together == 4
    traced = router.compile(backend="eager", fullgraph=True)
    for name, out in traced(X).items():
        torch.testing.assert_close(out, router[name](X))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(models())

    def forward(self, x):
        return sum(branch(x) for branch in self.branches)


def test_branches_of_a_model(workers):
    model = Branches()
    router = CompileRouter.from_module(model, X, config=QUICK)
    assert router.plan.together == 4
    torch.testing.assert_close(router.compile()(X), model(X))
