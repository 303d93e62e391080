"""Threads that compile and call at once: every result is right, and the process is what it was."""

import cProfile
import functools
import logging
import random
import sys
import threading
import warnings

import torch
from torch import nn

import wide_compiler
from wide_compiler import WideConfig

UNTUNED = WideConfig(tune_seconds=0)


class Plain(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.fc, self.norm = nn.Linear(size, size), nn.BatchNorm1d(size)

    def forward(self, x):
        return self.norm(torch.relu(self.fc(x)))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class WithFunction(Plain):
    def forward(self, x):
        return Doubled.apply(self.fc(x))


class Branching(Plain):
    """Runs as Python: members are lent the tensors of their lanes."""

    def __init__(self, size):
        super().__init__(size)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.fc(x) if x.sum() > 0 else self.fc(x) * 2


def of_the_process():
    """What a capture must not change, as far as anybody could see."""
    return {
        "call": nn.Module.__call__,
        "getattr": nn.Module.__getattr__,
        "stdout": sys.stdout,
        "stderr": sys.stderr,
        "register_hook": torch.Tensor.register_hook,
        "apply": torch.autograd.Function.__dict__["apply"],
        "own apply": vars(Doubled).get("apply"),
        "is_grad_enabled": torch.is_grad_enabled,
        "logging": (logging.root.manager.disable, [list(h.filters) for h in logging.root.handlers]),
        "warnings": list(warnings.filters),
        "flags": (torch.compiler.is_exporting(), torch.compiler.is_compiling()),
        "profile": sys.getprofile(),
    }


def test_eight_threads_compile_and_call():
    kinds = (Plain, WithFunction, Branching)
    shared = [[kind(4).eval() for _ in range(3)] for kind in kinds]
    served = [wide_compiler.compile(members, torch.randn(1, 4), config=UNTUNED) for members in shared]
    before, errors = of_the_process(), []

    def check(members, wide, x):
        torch.testing.assert_close(wide.shared(x), torch.stack([member(x) for member in members]))

    def work(thread):
        try:
            for turn in range(3):
                size = 3 + (thread + turn) % 4
                members = [kinds[(thread + turn) % 3](size).eval() for _ in range(3)]
                wide = wide_compiler.compile(members, torch.randn(1, size), config=UNTUNED)
                for batch in (2, 3):
                    check(members, wide, torch.randn(batch, size))
                    for others, other in zip(shared, served, strict=True):
                        check(others, other, torch.randn(2 + thread % 3, 4))
                trained = Plain(size)
                trained(torch.randn(4, size)).sum().backward()
                assert trained.fc.weight.grad is not None
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert of_the_process() == before
    assert [w.explain(measure=False).coverage for w in served] == [1.0, 0.5, 0.0]


def test_what_another_thread_sets_meanwhile_is_not_undone():
    stop, written = threading.Event(), []

    def write():
        while not stop.is_set():
            globals()["STEP"] = random.random()
            written.append(globals()["STEP"])

    globals()["STEP"] = 0.0
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            members = [ReadsTheStep(3) for _ in range(2)]
            wide_compiler.compile(members, torch.randn(2, 3), config=UNTUNED)
    finally:
        stop.set()
        writer.join()
    assert globals()["STEP"] == written[-1]


def test_what_another_thread_sets_during_the_export_is_not_undone():
    globals()["STEP"] = 0.0
    members = [ReadsAStepThatMoves(3) for _ in range(2)]
    wide = wide_compiler.compile(members, torch.randn(2, 3), config=UNTUNED)
    assert STEP == 5.0
    x = torch.randn(2, 3)
    torch.testing.assert_close(wide.shared(x)[1], members[1].fc(x) + 5.0)  # and is followed


STEP = 0.0


class ReadsTheStep(Plain):
    def forward(self, x):
        return self.fc(x) + STEP


MOVE = functools.partial(globals().update, {"STEP": 5.0})


class ReadsAStepThatMoves(Plain):
    """While it is exported, another thread sets what it reads."""

    def forward(self, x):
        y = self.fc(x) + STEP
        if type(y).__name__ == "FakeTensor":
            other = threading.Thread(target=MOVE)
            other.start()
            other.join()
        return y


def test_a_profiler_that_runs_goes_on():
    """cProfile's hook is no function: it cannot be handed back to `sys.setprofile`."""
    profiler = cProfile.Profile()
    between, after = (lambda: None), (lambda: None)
    profiler.enable()
    wide = wide_compiler.compile([nn.Linear(3, 2) for _ in range(2)], torch.randn(2, 3))
    between()
    wide.shared(torch.randn(2, 3))
    after()
    profiler.disable()
    # Not the names of callers of PyTorch: Python 3.12's cProfile loses them, with `torch.vmap` alone too.
    codes = {row.code for row in profiler.getstats()}
    assert codes >= {between.__code__, after.__code__}
    seen = []
    sys.setprofile(lambda frame, event, argument: seen.append(frame.f_code.co_name))
    try:
        wide.shared(torch.randn(3, 3))
    finally:
        sys.setprofile(None)
    assert "shared" in seen
