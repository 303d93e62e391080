"""The rungs by themselves: wide models, threads that adapt, and the choice between them."""

import time

import numpy as np
import pytest
import torch
from torch import nn

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.costs import SHARE, Costs
from wide_compiler.xcs.parallel.overlap import Level
from xcs import oracle

ALWAYS = Config(measure=True)


def rungs(function):
    return {rung for counts in function.stats().values() for rung in counts if rung != "plain"}


def mlp(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@jit(config=Config(measure=False))
def outputs(models, x):
    with torch.no_grad():
        return [m(x) for m in models]


def loop(models, x):
    with torch.no_grad():
        return [m(x) for m in models]


def test_wide_models_follow_their_members():
    models, x = [mlp(i) for i in range(4)], torch.randn(3, 4)

    def compare():
        assert oracle.same(outputs(models, x), loop(models, x), rtol=1e-5)

    compare()
    site = outputs.__xcs__.sites[0]
    kept = next(p.memory["wide"] for p in site.plans if "wide" in p.memory)
    compare()
    with torch.no_grad():
        models[2][0].weight.add_(1.0)  # a version counter
    compare()
    models[1][0].weight.data.mul_(2.0)  # no version counter
    compare()
    models[0][0].weight = nn.Parameter(torch.ones(8, 4))  # another tensor
    compare()
    models[3][2].bias.data = torch.ones(2)  # other memory
    compare()
    models[3].register_forward_hook(lambda m, i, o: o * 10)  # a hook
    compare()
    assert site.counts["wide model"] >= 5 and len(kept.models) == 4
    with torch.no_grad():
        assert not torch.equal(loop(models, x)[3], outputs.__wrapped__(models[:3], x)[2])


def test_gradients_reach_the_members():
    def run(models, x):
        return [m(x) for m in models]

    models, x = [mlp(i) for i in range(3)], torch.randn(2, 4)
    fast = jit(run, config=Config(measure=False))
    sum(y.sum() for y in fast(models, x)).backward()
    got = [m[0].weight.grad.clone() for m in models]
    for m in models:
        m.zero_grad()
    sum(y.sum() for y in run(models, x)).backward()
    assert all(torch.allclose(g, m[0].weight.grad) for g, m in zip(got, models, strict=True))


def test_members_that_differ_in_python_are_told_apart():
    class Scaled(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.fc, self.scale = nn.Linear(4, 4), scale

        def forward(self, x):
            return self.fc(x) * self.scale

    models, x = [Scaled(float(i)) for i in range(3)], torch.randn(2, 4)
    assert oracle.same(outputs(models, x), loop(models, x), rtol=1e-5)
    models[1].scale = 7.0
    assert oracle.same(outputs(models, x), loop(models, x), rtol=1e-5)


def test_vmapped_rows_have_versions_of_their_own():
    @jit(config=Config(measure=False))
    def run(xs):
        return [torch.tanh(x) for x in xs]

    weight = torch.ones(4, requires_grad=True)
    ys = run([torch.randn(4) for _ in range(5)])
    assert rungs(run) == {"torch vmap"}
    z = (ys[1] * weight).sum()
    ys[0].add_(1.0)  # another row
    z.backward()


def test_concurrency_goes_down_where_the_other_side_does_not_bear_it():
    level = Level(32)
    level.learn([0.01] * 32, 32)
    level.learn([0.1] * 32, 32)
    assert level.of(32) == 16
    for _ in range(30):
        level.learn([0.01] * 32, 32)
    assert 16 < level.of(32) <= 32


def test_concurrency_goes_down_from_what_there_was():
    """Not from what would be allowed: of twelve calls half are six."""
    level = Level(32)
    level.learn([0.01] * 12, 12)
    level.learn([0.1] * 12, 12)
    assert level.of(12) == 6


def test_fewer_are_tried_where_some_calls_take_much_longer():
    """A server that takes five at a time lets the sixth wait for a second."""
    level, used = Level(32), []
    for _ in range(40):
        used.append(level.of(12))
        level.learn([0.02] * 11 + [0.02 if used[-1] <= 6 else 1.0], 12)
    assert used[:3] == [12, 6, 6]
    assert sum(n > 6 for n in used) <= 6


def test_calls_that_differ_by_themselves_stay_together():
    level, used = Level(32), []
    for _ in range(20):
        used.append(level.of(12))
        level.learn([0.02] * 11 + [1.0], 12)
    assert used == [12, 6] + [12] * 18


def test_a_waiting_loop_is_fast_from_the_second_call_on():
    def wait(x):
        time.sleep(0.03)
        return x

    def plainly(xs):
        return [wait(x) for x in xs]

    run, items = jit(plainly), list(range(32))
    assert run(items) == run(items) == items
    assert rungs(run) == {"threads"}


def test_the_plain_loop_is_timed_again_now_and_then():
    costs = Costs()
    for item in (1e-3, 1e-6, 1e-6):  # the first when the machine was busy
        costs.measured(100 * item, 100)
    assert costs.plain_item == pytest.approx(1e-6) and not costs.is_due(100)
    costs.unseen = 0.9 * 1e-4 / SHARE
    assert not costs.is_due(100)
    costs.unseen = 1.1 * 1e-4 / SHARE
    assert costs.is_due(100)
    costs.measured(1e-4, 100)
    assert not costs.is_due(100)


def test_measured_choice_takes_lanes_for_many_rows_and_the_loop_for_few(eager):
    @jit
    def run(xs):
        return [(x - x.mean()) / x.std() for x in xs]

    rows = list(np.random.default_rng(0).normal(size=(3000, 16)))
    for _ in range(4):
        run(rows)
    assert rungs(run) == {"numpy lanes"}
    before = run.__xcs__.sites[0].counts["numpy lanes"]
    run(rows[:1]), run(rows[:2])
    assert run.__xcs__.sites[0].counts["numpy lanes"] == before


def test_calls_that_were_not_looked_at_are_counted_once():
    rows = [np.linspace(i, i + 1.0, 8) for i in range(32)]

    def run(rows):
        return [np.exp(row).sum() for row in rows]

    fast = jit(run, config=Config(measure=False))
    fast(rows)
    (site,) = fast.__xcs__.sites
    before, site.latest = site.budget.spent, 1e-3
    site.schedule.pause(5)
    for _ in range(6):
        fast(rows)
    assert site.budget.spent == pytest.approx(before + 5e-3)
    fast(rows)
    assert site.budget.spent == pytest.approx(before + 5e-3)
    assert list(fast.stats().values()) == [{"numpy lanes": 3, "plain": 5}]


def test_levels_below_one_that_was_too_high_are_not_tried_at_once():
    """A server that bears five refuses the sixth as it refuses the eighth."""
    level, used = Level(32), []
    for _ in range(100):
        used.append(level.of(8))
        level.learn([0.004] * 7 + [0.004 if used[-1] <= 5 else 1.0], 8)
    assert sum(n > 5 for n in used) == 1


def test_a_level_at_which_a_call_took_long_is_tried_again_when_that_is_paid_for():
    level, used = Level(32), []
    for _ in range(2000):
        used.append(level.of(8))
        level.learn([0.004] * 7 + [0.004 if used[-1] <= 5 else 1.0], 8)
    assert sum(n > 5 for n in used) <= 4  # 2000 loops of 6 ms take 12 s, each attempt beyond five a second
    assert used[-1] <= 5
