"""Random programs, run by plain PyTorch and by workers, compared after every step.

Thousands by one command:  PYTHONPATH=src:tests python -m signals.fuzz --programs 3000
"""

import argparse
import contextlib
import random

import torch

import wide_compiler.signals as gt
from signals.placed import signal

SIGNALS = {
    "one": ([2], 0),
    "pair": ([0, 1], 0),
    "pair_columns": ([1, 3], 1),
    "three": ([0, 1, 2], 0),
    "all": ([0, 1, 2, 3], 0),
    "all_columns": ([0, 1, 2, 3], 1),
}
UNARY = [
    torch.tanh,
    torch.sin,
    torch.relu,
    torch.neg,
    torch.abs,
    torch.sigmoid,
    lambda a: a * 2,
    lambda a: a + 0.5,
    lambda a: a.clamp(-1, 1),
    lambda a: a.softmax(-1),
    lambda a: a - a.mean(),
    lambda a: a.cumsum(0),
    torch.clone,
    lambda a: a.half().double(),
]
BINARY = [torch.add, torch.sub, torch.mul, torch.maximum, lambda a, b: torch.where(a > b, a, b * 2)]
REDUCTIONS = [
    lambda a, d: a.sum(d, keepdim=True),
    lambda a, d: a.mean(d, keepdim=True),
    lambda a, d: a.amax(d, keepdim=True),
    lambda a, d: a.sum(),
    lambda a, d: a.var(d, keepdim=True, unbiased=False),
    lambda a, d: a.logsumexp(d),
    lambda a, d: a.argmax(d).to(a.dtype),
    lambda a, d: a.max(d).values,
]


class Program:
    """One random program; `twins` are pairs (plain tensor, tensor on workers)."""

    def __init__(self, seed, gradients):
        self.rng = random.Random(seed)
        self.gradients = gradients
        self.twins = []
        self.trace = []
        generator = torch.Generator().manual_seed(seed)
        for _ in range(3):
            shape = [self.rng.choice([1, 2, 3, 5, 7, 8]) for _ in range(self.rng.choice([1, 2, 2, 3]))]
            plain = torch.randn(shape, generator=generator, dtype=torch.float64)
            with self.context():
                handle = gt.tensor(plain)
            if gradients:
                plain.requires_grad_()
                handle.requires_grad_()
            self.twins.append((plain, handle))
        self.leaves = list(self.twins)

    def context(self):
        name = self.rng.choice([None, *SIGNALS])
        self.expected = None if name is None else tuple(SIGNALS[name][0])
        return contextlib.nullcontext() if name is None else gt.signal.context(name)

    def pick(self, dims=0):
        fitting = [t for t in self.twins if t[0].ndim >= dims and t[0].numel() > 0]
        return self.rng.choice(fitting) if fitting else None

    def both(self, name, function, *operands, view=False):
        """Run on both sides; a fresh result under a signal must be on that signal's workers."""
        self.trace.append((name, [tuple(o[0].shape) for o in operands]))
        plain = function(*[o[0] for o in operands])
        with self.context():
            handle = function(*[o[1] for o in operands])
            if self.expected is not None and not view:
                assert handle._ref.home.mesh.workers == self.expected, (name, handle._ref.home.mesh)
        self.twins.append((plain, handle))
        if plain.numel() > 400:
            self.twins.pop()
        self.twins = self.twins[-8:]

    def step(self):
        kind = self.rng.choice(
            [
                "unary",
                "unary",
                "binary",
                "binary",
                "view",
                "view",
                "reduce",
                "matmul",
                "index",
                "cat",
                "write",
                "write",
                "respread",
            ]
        )
        getattr(self, kind)()

    def unary(self):
        i = self.rng.randrange(len(UNARY))
        operand = self.pick(1)
        if operand:
            self.both(f"unary{i}", UNARY[i], operand)

    def binary(self):
        a = self.pick()
        fitting = [t for t in self.twins if broadcastable(a[0].shape, t[0].shape)]
        i = self.rng.randrange(len(BINARY))
        self.both(f"binary{i}", BINARY[i], a, self.rng.choice(fitting))

    def reduce(self):
        a = self.pick(1)
        if a:
            d, i = self.rng.randrange(a[0].ndim), self.rng.randrange(len(REDUCTIONS))
            self.both(f"reduce{i}", lambda x: REDUCTIONS[i](x, d), a)

    def matmul(self):
        a = self.pick(2)
        if a:
            self.both("matmul", lambda x: x @ x.transpose(-1, -2), a)

    def cat(self):
        a = self.pick(1)
        if a:
            d = self.rng.randrange(a[0].ndim)
            self.both("cat", lambda x: torch.cat([x, x * 3], d), a)

    def index(self):
        a = self.pick(1)
        if not a:
            return
        size = a[0].shape[0]
        rows = [self.rng.randrange(size) for _ in range(4)]
        which = self.rng.randrange(4)
        functions = [
            lambda x: x[torch.tensor(rows)],
            lambda x: x.index_select(0, torch.tensor(rows)),
            lambda x: x[x > 0],
            lambda x: x.flip(0),
        ]
        self.both(f"index{which}", functions[which], a)

    def view_of(self, shape):
        """A random view function for this shape."""
        choices = [lambda x: x.reshape(-1), lambda x: x.unsqueeze(0)]
        if shape:
            d = self.rng.randrange(len(shape))
            start = self.rng.randrange(shape[d])
            stop = self.rng.randrange(start, shape[d]) + 1
            step = self.rng.choice([1, 1, 2])
            choices += [
                lambda x: x.transpose(0, d),
                lambda x: x.narrow(d, start, stop - start),
                lambda x: x[tuple([slice(None)] * d + [slice(start, None, step)])],
                lambda x: x.select(d, start),
            ]
            if not self.gradients:  # autograd forbids writes to one of several views
                choices += [lambda x: x.unbind(d)[start], lambda x: x.split(2, d)[0]]
        if len(shape) >= 2:
            choices.append(lambda x: x.diagonal(0, 0, 1))
        return self.rng.choice(choices)

    def view(self):
        a = self.pick(1)
        if a:
            f = self.view_of(tuple(a[0].shape))
            self.both("view", f, a, view=True)

    def write(self):
        """In place, through a view or not."""
        a = self.pick(1)
        if not a or (any(a[0] is leaf[0] for leaf in self.leaves) and self.gradients):
            return
        f = self.view_of(tuple(a[0].shape)) if self.rng.random() < 0.5 else (lambda x: x)
        amount = self.rng.random()
        how = self.rng.choice(
            [
                lambda v: v.mul_(amount),
                lambda v: v.add_(1),
                lambda v: v.fill_(amount),
                lambda v: v.copy_(v * 2 + 1),
                lambda v: v.masked_fill_(v > 0, amount),
                lambda v: v.tanh_(),
            ]
        )
        self.trace.append(("write", tuple(a[0].shape)))
        with torch.no_grad():  # gradients are of what follows the write
            how(f(a[0]))
            with self.context():
                how(f(a[1]))

    def respread(self):
        a = self.pick(2)
        if a:
            name = self.rng.choice(list(SIGNALS))
            self.twins.append((a[0].clone(), gt.signal.tensor(a[1], name=name)))

    def compare(self):
        for plain, handle in self.twins:
            assert plain.shape == handle.shape and plain.dtype == handle.dtype, self.trace
            same(handle.detach().cpu(), plain.detach(), self.trace)

    def compare_gradients(self):
        ends = [t for t in self.twins if t[0].requires_grad]
        if not ends:
            return
        plain = sum((p * p).sum() for p, _ in ends)
        handle = sum((h * h).sum() for _, h in ends)
        try:
            expected = torch.autograd.grad(plain, [p for p, _ in self.leaves], allow_unused=True)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error), self.trace
            expected = None
        if expected is None:
            try:
                torch.autograd.grad(handle, [h for _, h in self.leaves], allow_unused=True)
            except RuntimeError as error:
                assert "modified by an inplace operation" in str(error), self.trace
                return
            raise AssertionError(("eager refuses, workers do not", self.trace))
        got = torch.autograd.grad(handle, [h for _, h in self.leaves], allow_unused=True)
        for a, b in zip(got, expected, strict=True):
            assert (a is None) == (b is None), self.trace
            if a is not None:
                same(a.cpu(), b, self.trace)


def same(a, b, trace):
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8, equal_nan=True, msg=lambda m: f"{m}\n{trace}")


def broadcastable(a, b):
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))


def run_program(seed, length=10):
    program = Program(seed, gradients=seed % 3 == 0)
    for _ in range(length):
        program.step()
    program.compare()
    if program.gradients:
        program.compare_gradients()
    return len(program.trace)


def run_many(first, count):
    """Returns (steps run, instructions by worker)."""
    for name, (workers, axis) in SIGNALS.items():
        signal(name, workers, axis)
    before = [sum(s["instructions"].values()) for s in gt.debug.worker_stats()]
    steps = 0
    for seed in range(first, first + count):
        try:
            steps += run_program(seed)
        except Exception as error:
            error.add_note(f"fuzz seed {seed}")
            raise
    after = [sum(s["instructions"].values()) for s in gt.debug.worker_stats()]
    return steps, [b - a for a, b in zip(before, after, strict=True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    gt.cpu_workers(4)
    done = 0
    while done < options.programs:
        count = min(100, options.programs - done)
        steps, work = run_many(options.first + done, count)
        done += count
        print(
            f"{done} programs, none differs; {steps} steps in these {count}; instructions {work}", flush=True
        )


if __name__ == "__main__":
    main()
