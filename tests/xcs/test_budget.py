"""When a rung is tried, by a clock that the test holds: trials are paid from 4% of the plain loop's time."""

import itertools
from types import SimpleNamespace

import pytest

from wide_compiler.measure import clock
from wide_compiler.xcs.choice import choose
from wide_compiler.xcs.costs import SHARE, Budget, Costs, RungCosts
from wide_compiler.xcs.items import Items
from wide_compiler.xcs.strategies import Rung
from wide_compiler.xcs.work import Bail, Miss, Work

XS = [float(i) for i in range(100)]
ITEM = 1e-3  # seconds, as written


class World:
    """A site whose plain loop takes 0.1 s, and a rung that takes as long as it is told to."""

    def __init__(self, monkeypatch, rung_item, fails=False):
        self.now, self.rung_item, self.rung_call, self.fails = 0.0, rung_item, 0.0, fails
        self.budget, self.costs = Budget(), Costs()
        self.whole, self.trials = [], []  # calls that the rung ran; when it was tried, and for how long
        self.rung = Rung("fast", lambda work: True, self.run, 1e-3)
        monkeypatch.setattr(clock, "now", lambda: self.now)

    def run(self, work):
        self.now += self.rung_item * work.items.n + self.rung_call
        if self.fails:
            raise Bail("it cannot")
        return [2.0 * x for x in work.items.columns[0]]

    def calls(self, count):
        text = SimpleNamespace(kind="list", single=True)
        site = SimpleNamespace(config=SimpleNamespace(measure=True), text=text, budget=self.budget)
        site.took = self.whole.append
        plan = SimpleNamespace(costs=self.costs, guards=None, branches=False, rtol=None, last="plain")
        for _ in range(count):
            work = Work(site, plan, Items([XS], len(XS)), {"body": lambda x: 2.0 * x})
            began, before = self.now, self.budget.used
            values = choose(work, [self.rung])
            if self.budget.used > before:
                self.trials.append((self.budget.spent, self.budget.used - before))
            if isinstance(values, Miss):
                self.now += ITEM * len(XS)
                self.budget.spent += ITEM * len(XS)
                self.costs.measured(ITEM * len(XS), len(XS))
            else:
                assert values == [2.0 * x for x in XS]
                work.took(self.now - began)


@pytest.mark.parametrize("fails", [False, True])
def test_a_rung_that_loses_or_fails_is_tried_ever_more_rarely(monkeypatch, fails):
    world = World(monkeypatch, 2 * ITEM, fails)
    world.calls(2000)
    assert not world.whole and 2 <= len(world.trials) <= 8
    assert world.budget.used <= SHARE * world.budget.spent
    moments = [spent for spent, _ in world.trials]
    assert all(later >= 1.7 * earlier for earlier, later in itertools.pairwise(moments[1:]))
    assert all(took <= 2 * ITEM * len(XS) for _, took in world.trials)  # twice one plain run


def test_a_rung_that_wins_runs_from_then_on(monkeypatch):
    world = World(monkeypatch, 0.1 * ITEM)
    world.calls(500)
    assert len(world.trials) == 1 and len(world.whole) > 490


def test_what_a_call_costs_and_what_an_item_costs_are_told_apart(monkeypatch):
    world = World(monkeypatch, 0.0)
    world.rung_call = 40 * ITEM  # for a quarter of the items too, so that a call of all takes 40% of the loop
    world.calls(500)
    assert len(world.trials) == 1 and len(world.whole) > 480


def test_a_rung_that_became_slow_is_left_and_found_again(monkeypatch):
    world = World(monkeypatch, 0.1 * ITEM)
    world.calls(50)
    world.rung_item = 3 * ITEM
    before = len(world.whole)
    world.calls(400)
    assert len(world.whole) - before < 40
    world.rung_item = 0.1 * ITEM
    before = len(world.whole)
    world.calls(6000)
    assert len(world.whole) - before > 1000


def test_a_budget_is_a_share_of_what_was_spent():
    budget = Budget(spent=1.0)
    assert budget.affords(SHARE) and not budget.affords(1.1 * SHARE)
    budget.used = SHARE
    assert not budget.affords(1e-9)


def test_some_calls_tell_more_than_a_trial():
    record = RungCosts([(1.0, 100)])
    assert record.predicted(100) == pytest.approx(1.0) and record.predicted(200) == pytest.approx(1.75)
    for seconds in (5.0, 6.0):
        record.took(seconds, 100)
        assert record.predicted(100) == pytest.approx(1.0)
    record.took(4.0, 100)
    assert record.predicted(100) == pytest.approx(4.0)
    record.lost(1.0, "it gave up")
    assert record.predicted(100) is None and record.losses == 1
