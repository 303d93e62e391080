"""One shard of PyTorch's operator and module databases; `databases.report` runs all of them."""

import pytest
import torch

from databases import compare, harness, samples
from databases.report import outcomes

# About one in thirty entries: which ones is a matter of their names, so it stays as ops come and go.
SHARD, SHARDS = 7, 30


def test_a_shard_of_the_databases_equals_the_loop():
    found = list(outcomes(SHARD, SHARDS, most=2))
    bad = [f"{o.kind} {o.sample}: {o.detail}" for o in found if o.bad]
    assert not bad, "\n".join(bad)
    equal = [o for o in found if o.kind in harness.WAYS]
    assert len(equal) > 0.8 * len(found)
    assert sum(o.kind == "rule" for o in equal) > 0.6 * len(equal)


def test_a_shard_of_the_databases_on_workers_equals_one_process():
    found = list(outcomes(SHARD, 10 * SHARDS, most=1, workers=True))
    bad = [f"{o.kind} {o.sample}: {o.detail}" for o in found if o.bad]
    assert not bad, "\n".join(bad)
    assert sum(o.kind in ("local", "rule") for o in found) > 0.4 * len(found) > 4


def test_samples_differ_by_lane_in_numbers_only():
    entry = next(e for e in samples.entries() if e.name == "addmm")
    for sample in entry.make(3, 2):
        first, second = (torch.utils._pytree.tree_leaves(lane) for lane in sample.lanes[:2])
        for a, b in zip(first, second, strict=True):
            if isinstance(a, torch.Tensor):
                assert a.shape == b.shape and not torch.equal(a, b)
            else:
                assert a == b


class Broken:
    """A wide model that gives another lane's numbers, too few lanes, or an error that says nothing."""

    def __init__(self, wide, how):
        self.wide, self.how = wide, how

    def __getattr__(self, name):
        return getattr(self.wide, name)

    def each(self, *args):
        if self.how == "error":
            raise KeyError("lane")
        return [self.wide.each(*args)[0]] * 3

    def shared(self, *args):
        return self.wide.shared(*args)[:2] if self.how == "lanes" else self.wide.shared(*args)


@pytest.mark.parametrize(("how", "kind"), [("numbers", "WRONG"), ("lanes", "ERROR"), ("error", "ERROR")])
def test_the_harness_sees_what_is_broken(monkeypatch, how, kind):
    sample = next(e for e in samples.entries() if e.name == "addmm").make(3, 1)[0]
    case = next(harness.cases(sample))
    assert harness.run(case).kind == "rule"
    compile_right = harness.compiled
    monkeypatch.setattr(harness, "compiled", lambda *a: Broken(compile_right(*a), how))
    assert harness.run(case).kind == kind


def test_a_member_that_fails_is_skipped_and_a_refusal_is_told_apart():
    def call(x):
        raise ValueError("no")

    lanes = [((torch.randn(3),), {})] * 3
    failing = samples.Sample("failing", 0, lanes, call)
    assert {harness.run(case).kind for case in harness.cases(failing)} == {"skip"}
    ragged = samples.Sample("ragged", 0, [((torch.eye(3)[:i],), {}) for i in (1, 1, 1)], torch.nonzero)
    ragged.lanes[1][0][0].zero_()
    # `each` gives the lanes' own sizes; `shared` cannot stack them.
    assert {harness.run(case).kind for case in harness.cases(ragged)} == {"whole loop", "refused"}


def test_gradients_are_compared():
    def result(gradient):
        return compare.Result(torch.ones(2), {"parameter w": gradient})

    assert compare.first_difference(result(None), result(torch.ones(2)))
    assert compare.first_difference(result(torch.zeros(2)), result(torch.ones(2)))
    assert compare.first_difference(result(torch.zeros(2)), result(None)) is None
