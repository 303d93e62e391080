"""Threads that compile, call and train wide models and routers, their own ones and common ones, for a while.

    python benchmarks/threads.py --threads 8 --seconds 60

Every result is compared with the members' own; afterwards the process-wide state of Python and PyTorch that a
capture could touch must be what it was. Prints the counts; the exit code says whether anything differed.
"""

import argparse
import copy
import logging
import random
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from typing import Any

import torch
from torch import nn

import wide_compiler
from wide_compiler import WideConfig
from wide_compiler.routers import BaseTower, WideRouter
from wide_compiler.training import SGD, TrainStep

UNTUNED = WideConfig(tune_seconds=0)
N = 3


class Net(BaseTower):
    def __init__(self, name: str, width: int):
        super().__init__(name)
        self.a, self.norm, self.b = nn.Linear(4, width), nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.norm(self.a(x))))


class Counts(Net):
    """Runs as the members' own Python."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


def nets(kind: type[Net], width: int) -> list[Net]:
    return [kind(f"t{i}", width) for i in range(N)]


def globals_of_the_process() -> list[Any]:
    """What `torch.export`, or a careless capture, changes."""
    handlers = [(handler, list(handler.filters)) for handler in logging.root.handlers]
    return [
        *(sys.stdout, sys.stderr, sys.getprofile(), sys.gettrace(), threading.excepthook),
        *(logging.root.manager.disable, handlers, nn.Module.__call__, nn.Module.__getattr__),
        *(torch.Tensor.register_hook, torch.autograd.Function.apply, torch.is_grad_enabled),
        *(torch.compiler.is_compiling(), torch.compiler.is_exporting(), torch.backends.mkldnn.enabled),
        *(torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()),
        *(torch.are_deterministic_algorithms_enabled(), list(warnings.filters)),
    ]


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


class Work:
    """What a thread does once; `common` is in use by all threads."""

    def __init__(self) -> None:
        self.members = nets(Net, 8)
        self.common = wide_compiler.compile(self.members, torch.randn(2, 4), config=UNTUNED)
        self.loop_members = nets(Counts, 8)
        self.common_loop = wide_compiler.compile(self.loop_members, torch.randn(2, 4), config=UNTUNED)
        self.router, self.towers = self.new_router()

    def new_router(self) -> tuple[WideRouter, list[Net]]:
        router, towers = WideRouter("common", config=UNTUNED), nets(Net, 6)
        for tower in towers:
            router.attach(tower.name, tower)
        return router, towers

    def call_common(self) -> None:
        x = torch.randn(random.randint(1, 5), 4)
        close(self.common.shared(x), torch.stack([m(x) for m in self.members]))

    def call_common_loop(self) -> None:
        xs = [torch.randn(3, 4) for _ in range(N)]
        close(list(self.common_loop.each(xs)), [m(x) for m, x in zip(self.loop_members, xs, strict=True)])

    def call_common_router(self) -> None:
        x = torch.randn(3, 4)
        close(list(self.router(x).values()), [tower(x) for tower in self.towers])

    def compile_own(self) -> None:
        kind, width = random.choice([(Net, 5), (Net, 7), (Counts, 6)])
        members, x = nets(kind, width), torch.randn(2, 4)
        wide = wide_compiler.compile(members, x, config=UNTUNED)
        close(wide.shared(x), torch.stack([m(x) for m in members]))
        with torch.no_grad():
            close(wide.shared(x[:1]), torch.stack([m(x[:1]) for m in members]))

    def own_router(self) -> None:
        router, towers = self.new_router()
        x = torch.randn(2, 4)
        for _ in range(2):
            close(list(router(x).values()), [tower(x) for tower in towers])

    def train_own(self) -> None:
        members, x = nets(Net, 5), torch.randn(N, 3, 4)
        wide = wide_compiler.compile(copy.deepcopy(members), x[0], config=UNTUNED)
        step = TrainStep(wide, SGD(wide.parameters(), lr=0.1), lambda y: y.square().mean((1, 2)))
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in members]
        for _ in range(3):
            losses = step(x)
            for lane, (member, optimizer) in enumerate(zip(members, optimizers, strict=True)):
                optimizer.zero_grad()
                loss = member(x[lane]).square().mean()
                loss.backward()
                optimizer.step()
                close(losses[lane], loss.detach())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    work = Work()
    jobs = [
        getattr(work, name)
        for name in vars(Work)
        if name.split("_")[0] in ("call", "compile", "own", "train")
    ]
    before, done, wrong = globals_of_the_process(), Counter[str](), []
    end = time.monotonic() + options.seconds

    def run() -> None:
        while time.monotonic() < end:
            job = random.choice(jobs)
            try:
                job()
                done[job.__name__] += 1
            except Exception:
                wrong.append(f"{job.__name__}: {traceback.format_exc()}")

    threads = [threading.Thread(target=run) for _ in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    changed = [i for i, (a, b) in enumerate(zip(before, globals_of_the_process(), strict=True)) if a != b]
    print(f"{options.threads} threads, {options.seconds:.0f} s: {dict(done)}; {len(wrong)} wrong or failed")
    print(f"process-wide state changed: {changed or 'nothing'}")
    for text in wrong[:5]:
        print(text)
    return int(bool(wrong or changed))


if __name__ == "__main__":
    sys.exit(main())
