"""Candidates are compared with the reference, timed by the clock, and leave nothing behind."""

import os

import pytest
import torch

from measure.clocks import HeldClock, NoClock, prefers
from wide_compiler.measure import Candidate, Contest, Written, use_clock
from wide_compiler.measure.contest import private_copies


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))


class Call:
    """A call with arguments; candidates are functions of them."""

    def __init__(self, *arguments, written=(), gradients=False, private=True, reordered=False):
        self.arguments = private_copies(arguments, written) if private else list(arguments)
        self.written, self.gradients, self.private = written, gradients, private
        self.reordered = reordered

    def candidate(self, way):
        leaves = [a for a in self.arguments if a.requires_grad]
        written = [Written(self.arguments, i) for i in self.written]
        return Candidate(lambda: way(*self.arguments), leaves, written, self.private)

    def contest(self, reference):
        return Contest(self.candidate(reference), self.gradients, False, self.reordered)

    def problem(self, reference, way):
        with self.contest(reference) as contest:
            return contest.problem(self.candidate(way))


def product(x, w):
    return [x * w]


def raising(x, w):
    raise ValueError("no")


@pytest.mark.parametrize("private", [True, False])
def test_results_are_compared(private):
    x, w = torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)
    call = Call(x, w, gradients=True, private=private)
    assert call.problem(product, lambda x, w: [w * x]) is None
    assert "is off by" in call.problem(product, lambda x, w: [x * w + 1])
    assert "raises ValueError: no" in call.problem(product, raising)
    assert "gives (2, 4)" in call.problem(product, lambda x, w: [(x * w)[:2]])
    assert "gives 2 tensors, expected 1" in call.problem(product, lambda x, w: [x * w, x])
    # Right in value, wrong in gradient.
    assert call.problem(product, lambda x, w: [x * w.detach() + 0 * w]) is not None
    assert w.grad is None


def test_written_tensors_are_compared_and_restored():
    counter = torch.zeros(2)

    def count(counter, by=1):
        counter.add_(by)
        return [torch.ones(3)]

    call = Call(counter, written=[0], private=False)
    assert call.problem(count, count) is None
    assert "is off by" in call.problem(count, lambda counter: count(counter, 2))
    assert counter.eq(0).all()


def test_the_same_random_numbers_each_time():
    state = torch.get_rng_state()

    def drop(x):
        return [torch.dropout(x, 0.5, True)]

    assert Call(torch.ones(1000)).problem(drop, drop) is None
    assert torch.equal(state, torch.get_rng_state())


DRAWS = {
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.3),
    "in place": lambda x: torch.nn.functional.dropout(x.clone(), 0.3, inplace=True),
    "channels": lambda x: torch.nn.functional.dropout1d(x, 0.3),
    "noise": lambda x: x + torch.randn_like(x),
    "uniform": lambda x: x * torch.rand(4) + torch.empty(4).uniform_(2, 3),
    "normal": lambda x: torch.normal(x.detach(), 1.0) * x,
    "bernoulli": lambda x: x * torch.bernoulli(torch.full((4,), 0.5)),
    "integers": lambda x: x[torch.randint(0, 3, (2,))].sum() * x,
    "permutation": lambda x: x[torch.randperm(len(x))],
    "gumbel": lambda x: torch.nn.functional.gumbel_softmax(x),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_draws_in_another_order_are_compared(kind):
    draw = DRAWS[kind]

    def forwards(x, y):
        return [draw(x), draw(y)]

    def backwards(x, y):
        return [draw(y), draw(x)][::-1]

    def wrong(x, y):
        return [draw(x), draw(y) * 1.5]

    x, y = torch.rand(3, 4, requires_grad=True), torch.rand(3, 4, requires_grad=True)
    call = Call(x, y, gradients=True, reordered=True)
    assert call.problem(forwards, backwards) is None
    assert "is off by" in call.problem(forwards, wrong)
    in_order = Call(x, y, gradients=True)
    assert in_order.problem(forwards, forwards) is None
    if kind not in ("channels", "integers", "permutation"):  # few values: they may agree by chance
        assert in_order.problem(forwards, backwards)


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_dropout_is_compared_whoever_does_it(p):
    """A fused kernel, an op of its own, a mask of coins: the same layer in any of these ways is the same."""

    def fused(x, _):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=p)

    def by_hand(x, _):
        weights = torch.softmax(x @ x.transpose(-2, -1) / x.shape[-1] ** 0.5, -1)
        return torch.nn.functional.dropout(weights, p) @ x

    def op(x, _):
        weights = torch.softmax(x @ x.transpose(-2, -1) / x.shape[-1] ** 0.5, -1)
        return torch.native_dropout(weights, p, True)[0] @ x

    def coins(x, _):
        weights = torch.softmax(x @ x.transpose(-2, -1) / x.shape[-1] ** 0.5, -1)
        return weights * torch.bernoulli(torch.full_like(weights, 1 - p)) / (1 - p) @ x

    x = torch.rand(3, 4, requires_grad=True)
    call = Call(x, x, gradients=True, reordered=True)
    for other in (by_hand, op, coins):
        assert call.problem(fused, other) is None
    assert "is off by" in call.problem(fused, lambda x, _: coins(x, _) * (1 - p))


def test_what_was_compiled_stays_compiled():
    """Under a mode that fixes draws torch.compile would give a function up for good."""
    ran = []

    def backend(graph, inputs):
        return lambda *args: ran.append(1) or graph(*args)

    def draw(x, _):
        return torch.nn.functional.dropout(x, 0.5)

    compiled = torch.compile(draw, backend=backend)
    x = torch.rand(3, 4)
    compiled(x, x)
    call = Call(x, x, gradients=False, reordered=True)
    assert call.problem(draw, compiled) is None
    ran.clear()
    compiled(x, x)
    assert ran


def test_a_draw_without_a_stand_in_is_a_problem():
    def rrelu(x):
        return [torch.nn.functional.rrelu(x, training=True)]

    decision = settled(NoClock(), Call(-torch.ones(3), reordered=True), rrelu, rrelu)
    assert decision.name == "plain" and "not compared: rrelu" in decision.why


def test_gradient_hooks_do_not_see_copies():
    w = torch.randn(3, requires_grad=True)
    seen = []
    w.register_hook(seen.append)
    assert Call(w, gradients=True).problem(lambda w: [w * 2], lambda w: [w + w]) is None
    assert not seen


def test_not_a_number_equals_itself_and_nothing_else():
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    call = Call(x)
    assert call.problem(lambda x: [x * 1], lambda x: [x.clone()]) is None
    assert call.problem(lambda x: [x * 1], lambda x: [x.nan_to_num(0.0)])
    assert "inf of other signs" in call.problem(lambda x: [x * 1], lambda x: [x.abs()])


KEY = ("a question",)


def settled(clock, call, reference, way):
    with use_clock(clock), call.contest(reference) as contest:
        return contest.settle(KEY, "fast", call.candidate(way), "plain", 1.0)


def test_the_plain_way_unless_another_is_clearly_faster():
    call = Call(torch.ones(3), torch.ones(3))
    for seconds, toll, name in ((0.9, 0.0, "fast"), (0.97, 0.0, "plain"), (0.9, 0.1, "plain")):
        clock = HeldClock({"plain": 1.0, "fast": seconds}.get)
        with use_clock(clock), call.contest(product) as contest:
            fast = call.candidate(product)
            contest.tolls = {"fast": toll}
            decision = contest.settle((seconds, toll), "fast", fast, "plain", 1.0)
        assert (decision.name, decision.why) == (name, "measured")
        assert decision.ms == pytest.approx({"plain": 1000.0, "fast": 1e3 * (seconds + toll)})


def test_what_is_wrong_is_neither_timed_nor_remembered():
    call = Call(torch.ones(3), torch.ones(3))
    decision = settled(NoClock(), call, product, lambda x, w: [x + w])
    assert decision.name == "plain" and decision.why.startswith("fast: is off by")
    assert settled(prefers("fast"), call, product, product).why == "measured"
    # Remembered, but wrong by now.
    assert settled(NoClock(), call, product, lambda x, w: [x + w]).name == "plain"


def test_a_reference_that_cannot_be_reproduced_runs_itself():
    numbers = iter(range(100))
    decision = settled(NoClock(), Call(torch.ones(3)), lambda x: [x * next(numbers)], lambda x: [x])
    assert decision.name == "plain" and decision.why.startswith(
        "not compared: two runs of it disagree: the second is off by"
    )


def later_process(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)


@pytest.mark.parametrize("later", ["fast", "plain"])
def test_an_answer_taken_under_load_is_confirmed_once(later, monkeypatch):
    call = Call(torch.ones(3), torch.ones(3))
    close = HeldClock({"plain": 1.2, "fast": 1.0}.get, busy="a load average of 9")
    first = settled(close, call, product, product)
    assert (first.name, first.provisional) == ("fast", True)
    again = settled(NoClock(), call, product, product)  # under the same load: nothing to be learnt
    assert (again.name, again.why, again.provisional) == ("fast", "remembered", True)
    later_process(monkeypatch)
    second = settled(prefers(later, busy="still"), call, product, product)
    assert (second.name, second.why, second.provisional) == (later, "confirmed", False)
    third = settled(NoClock(), call, product, product)
    assert (third.name, third.why) == (later, "remembered")


def test_far_ahead_under_load_needs_no_confirmation():
    call = Call(torch.ones(3), torch.ones(3))
    assert not settled(prefers("fast", busy="busy"), call, product, product).provisional


def test_a_provisional_answer_whose_loser_is_wrong_by_now(monkeypatch):
    call = Call(torch.ones(3), torch.ones(3))
    close = HeldClock({"plain": 1.0, "fast": 1.2}.get, busy="busy")
    assert settled(close, call, product, product).provisional
    later_process(monkeypatch)
    decision = settled(prefers("fast"), call, product, lambda x, w: [x + w])
    assert (decision.name, decision.why) == ("plain", "confirmed")
