"""Reads of a tensor's values that a graph can answer: equal in a whole life, and never as a loop."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from life_oracle import FEATURES, live, looped


def member(function, **state):
    class Member(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(FEATURES, FEATURES)
            for name, value in state.items():
                setattr(self, name, value)

        def forward(self, x):
            return function(self, self.lin(x))

    return Member


def drop_layers(m, h):
    """As Whisper, Bart, OPT and Wav2Vec2 do."""
    for _ in range(2):
        skip = m.training and torch.rand([]) < m.drop
        if not skip:
            h = m.lin(h)
    return h


def drop_layers_at_once(m, h):
    if m.training:
        draw = torch.rand(())
        if draw < m.drop:
            return h
    return m.lin(h)


def check_positive(m, h):
    if (h.square() < 0).any():
        raise ValueError("negative")
    return h.square()


def check_otherwise(m, h):
    if not torch.isfinite(h).all() or (h.abs() > 1e6).any():
        raise ValueError(f"out of range: {h}")
    assert (h.abs() >= 0).all(), "negative"
    return h * 2


def mask_of_a_plain_call(m, h, mask=None):
    """As LongT5 and SwitchTransformers: a trace would find no mask."""
    if mask is None and not torch.compiler.is_compiling():
        mask = torch.ones(h.shape[0], 1)
    return h * mask.to(h.dtype)


def shortcut_of_a_plain_call(m, h):
    """As the masks of many models: a trace takes the way that needs no values."""
    if not torch.compiler.is_exporting() and float(h.abs().sum()) == 0.0:
        return h
    return h * 2


def moved_to_what_it_is(m, h):
    """As the routers of SwitchTransformers and NLLB-MoE."""
    m.lin = m.lin.to(h.dtype)
    return m.lin(h)


CASES = {
    "what a trace would miss": member(mask_of_a_plain_call),
    "what only a trace leaves out": member(shortcut_of_a_plain_call),
    "a layer moved to the dtype it has": member(moved_to_what_it_is),
    "a layer drop that is off": member(drop_layers, drop=0.0),
    "the same by an early return": member(drop_layers_at_once, drop=0.0),
    "a layer drop that is always on": member(drop_layers_at_once, drop=1.0),
    "a check": member(check_positive),
    "checks of all kinds": member(check_otherwise),
    "gaussian_nll_loss": member(lambda m, h: F.gaussian_nll_loss(h, h * 2, h.square() + 0.1)),
    "cov": member(lambda m, h: torch.cov(h.mT)),
    "cov of one row": member(lambda m, h: torch.cov(h.flatten()) + h.sum()),
    "cov without correction": member(lambda m, h: h.mT.cov(correction=0)),
    "weighted cov": member(lambda m, h: torch.cov(h, fweights=torch.tensor([1, 2, 1, 3]))),
    "doubly weighted cov": member(
        lambda m, h: torch.cov(h, fweights=torch.tensor([1, 2, 1, 3]), aweights=h[0].abs())
    ),
    "corrcoef": member(lambda m, h: torch.corrcoef(h)),
    "an index that is a number": member(lambda m, h: h[h.sum().abs().long().clamp(max=1)]),
    "the same in a second dim": member(lambda m, h: h[..., h[0].argmax()] + h[:, h[1].argmin()]),
    "beside other indices": member(lambda m, h: h[None, torch.tensor([0, 1]), h[0].argmax()]),
    "from the end": member(lambda m, h: h[torch.tensor(-1)]),
    "norm over all batches": lambda: nn.Sequential(
        nn.Linear(FEATURES, 4), nn.BatchNorm1d(4, momentum=None), nn.Tanh(), nn.Linear(4, 2)
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_life_without_a_loop(name):
    life = live(CASES[name])
    assert not looped(life)
    assert life.coverage == 1.0


def test_a_check_that_fails_is_an_error():
    models = [member(check_positive)() for _ in range(2)]
    wide = wide_compiler.compile(models, torch.randn(3, FEATURES))
    assert not wide.explain(measure=False).why

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.low = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            if (x < self.low).any():
                raise ValueError("too low")
            return x + self.low

    wide = wide_compiler.compile([Shifted() for _ in range(2)], torch.ones(3))
    assert not wide.explain(measure=False).why
    wide.shared(torch.ones(3))
    with pytest.raises(RuntimeError, match="a check of the member failed"):
        wide.shared(-torch.ones(3))


def test_a_layer_drop_that_is_on_runs_as_python():
    models = [member(drop_layers_at_once, drop=0.5)() for _ in range(2)]
    wide = wide_compiler.compile(models, torch.randn(3, FEATURES))
    assert wide.explain(measure=False).why


def branch(m, h):
    if (h.sum() > 0).any():
        return h * 2
    return h


def caught(m, h):
    try:
        if (h.sum() > 0).any():
            raise ValueError
    except ValueError:
        return h * 3
    return h


def write_chosen(m, h):
    row = h[h[0].argmax().clamp(max=1)]
    row.mul_(2)
    return h * 1


def write_behind(m, h):
    h = h * 1
    row = h[h[0].argmax().clamp(max=1)]
    h.mul_(2)
    return h + row


@pytest.mark.parametrize("function", [branch, caught, write_chosen, write_behind])
def test_what_is_no_check_runs_as_python_and_is_right(function):
    life = live(member(function))
    assert looped(life)


class Picky(nn.Module):
    def forward(self, x):
        if (x < 0).any():
            raise ValueError("negative")
        return x * 2


class Handling(nn.Module):
    """An error that the member handles itself is a branch, not a check."""

    def __init__(self, how):
        super().__init__()
        self.fc, self.part, self.how = nn.Linear(3, 3), Picky(), how

    def forward(self, x):
        if self.how == "suppress":
            with contextlib.suppress(ValueError):
                x = self.part(x)
        elif self.how == "part":
            try:
                x = self.part(x)
            except ValueError:
                x = x.abs() * 10
        else:
            try:
                self.check(x)
            except ValueError:
                x = x.abs() * 10
        return self.fc(x)

    def check(self, x):
        if (x < 0).any():
            raise ValueError("negative")


class Outer(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.first, self.handling, self.last = nn.Linear(3, 3), Handling(how), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.handling(self.first(x)).tanh())


@pytest.mark.parametrize("make", [Handling, Outer])
@pytest.mark.parametrize("how", ["suppress", "part", "own check"])
def test_errors_that_members_handle(how, make):
    members = [make(how) for _ in range(3)]
    wide = wide_compiler.compile(members, torch.rand(2, 3))
    for x in (torch.rand(2, 3), -torch.rand(2, 3), torch.randn(2, 3)):
        torch.testing.assert_close(wide.shared(x), torch.stack([member(x) for member in members]))
    rows = wide.explain(measure=False).rows
    assert (len([row for row in rows if row.how == "rule"]) >= 3) is (make is Outer)  # around it all is wide


def test_a_capture_that_fails_prints_nothing(capfd):
    wide = wide_compiler.compile([member(branch)() for _ in range(2)], torch.randn(3, FEATURES))
    assert "GuardOnDataDependent" in wide.explain(measure=False).why
    assert "def forward" not in "".join(capfd.readouterr())


NO_TEXT = """
class Quiet(nn.Module):
    def __init__(self, handles):
        super().__init__()
        self.fc, self.part, self.handles = nn.Linear(3, 3), Picky(), handles
    def forward(self, x):
        return self.fc(self.handled(x) if self.handles else self.part(x))
    def handled(self, x):
        try:
            return self.part(x)
        except ValueError:
            return x.abs() * 10
"""


@pytest.mark.parametrize("handles", [False, True])
def test_code_without_a_text(handles):
    names = {"nn": nn, "Picky": Picky}
    exec(NO_TEXT, names)
    members = [names["Quiet"](handles) for _ in range(3)]
    wide = wide_compiler.compile(members, torch.rand(2, 3))
    for x in (torch.rand(2, 3), *([-torch.rand(2, 3)] if handles else [])):
        torch.testing.assert_close(wide.shared(x), torch.stack([member(x) for member in members]))
    rows = wide.explain(measure=False).rows
    assert bool([row for row in rows if row.how == "rule"]) is not handles


class Branches(nn.Module):
    def forward(self, h):
        return h * 2 if float(h.sum()) > 0 else h * 3


def test_in_a_forward_that_asks_for_a_trace_only_what_reads_values_runs_by_lane():
    def forward(m, h):
        return m.head(m.branches(mask_of_a_plain_call(m, h)))

    make = member(forward, branches=Branches(), head=nn.Linear(FEATURES, 2))
    models, x = [make() for _ in range(3)], torch.randn(4, FEATURES)
    wide = wide_compiler.compile(models, x)
    torch.testing.assert_close(wide.shared(x), torch.stack([m(x) for m in models]))
    explanation = wide.explain(measure=False)
    assert not explanation.why
    assert {row.op for row in explanation.rows if not row.wide} == {"Branches"}


class Chosen(nn.Module):
    def forward(self, h, positive, factor):
        return h * factor if positive else h * 3


@pytest.mark.parametrize("written", [False, True])
def test_numbers_of_a_tensor_reach_a_module_that_branches_on_them(written):
    def forward(m, h):
        total = h.sum()
        positive, factor = (total > 0).item(), total.item()
        if written:
            total.zero_()
        return m.head(m.chosen(h, positive, factor=factor)) + total

    make = member(forward, chosen=Chosen(), head=nn.Linear(FEATURES, 2))
    models = [make() for _ in range(4)]
    xs = [torch.randn(4, FEATURES) for _ in models]
    wide = wide_compiler.compile(models, xs[0])
    for _ in range(2):
        torch.testing.assert_close(wide.each(xs), [m(x) for m, x in zip(models, xs, strict=True)])
        xs = [-x for x in xs]
    explanation = wide.explain(measure=False)
    assert not explanation.why
    assert {row.op for row in explanation.rows if not row.wide} == {"Chosen"}
