"""A call tried several ways leaves nothing behind."""

import torch

from wide_compiler.tuning import Trial


def test_results_are_compared():
    x, w = torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)
    trial = Trial([x, w], [], gradients=True)
    trial.expect(lambda a: [a[0] * a[1]])
    assert trial.difference(lambda a: [a[1] * a[0]]) is None
    assert "differs" in trial.difference(lambda a: [a[0] * a[1] + 1])
    assert "ValueError: no" in trial.difference(_raising)
    assert trial.difference(lambda a: [(a[0] * a[1])[:2]])
    assert trial.difference(lambda a: [a[0] * a[1], a[0]])
    # Right in value, wrong in gradient.
    assert trial.difference(lambda a: [a[0] * a[1].detach() + 0 * a[1]]) is not None
    assert w.grad is None


def _raising(arguments):
    raise ValueError("no")


def test_written_arguments_are_copies_and_start_afresh():
    counter = torch.zeros(2)

    def count(arguments):
        arguments[0].add_(1)
        return [arguments[0].clone()]

    trial = Trial([counter], [0], gradients=False)
    trial.expect(count)
    trial.run(count)
    assert trial.difference(count) is None
    assert counter.eq(0).all()


def test_the_same_random_numbers_each_time():
    x = torch.ones(1000)
    trial = Trial([x], [], gradients=False)
    trial.expect(lambda a: [torch.dropout(a[0], 0.5, True)])
    assert trial.difference(lambda a: [torch.dropout(a[0], 0.5, True)]) is None


def test_gradient_hooks_do_not_see_a_trial():
    w = torch.randn(3, requires_grad=True)
    seen = []
    w.register_hook(seen.append)
    trial = Trial([w], [], gradients=True)
    trial.expect(lambda a: [a[0] * 2])
    assert trial.difference(lambda a: [a[0] + a[0]]) is None
    assert not seen


def test_not_a_number_equals_itself_and_nothing_else():
    x = torch.tensor([1.0, float("nan"), float("inf")])
    trial = Trial([x], [], gradients=False)
    trial.expect(lambda a: [a[0] * 1])
    assert trial.difference(lambda a: [a[0].clone()]) is None
    assert trial.difference(lambda a: [a[0].nan_to_num(0.0)])


def test_memory_laid_out_otherwise():
    w = torch.randn(2, 3, 4, requires_grad=True)
    trial = Trial([w], [], gradients=True)
    trial.expect(lambda a: [a[0] * 2])
    other = trial.changed({0: lambda t: t.mT.contiguous().mT})
    assert other.arguments[0].stride() != w.stride()
    assert other.difference(lambda a: [a[0] * 2]) is None
