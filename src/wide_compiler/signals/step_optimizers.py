"""Optimisers of a recorded step: their ops in it, and the floats that change from step to step."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..guards.reads import equal_atoms
from ..workers.optimizer_floats import GroupKind, OptimizerProbe
from ..workers.worker_steps import FLOATS, Window

_AHEAD = 12  # steps of an optimiser that must run the same ops


class NotRepeatable(Exception):
    """Raised with the reason why a call cannot be replayed."""


class OptimizerState:
    """The step counts of an optimiser's parameters before its step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.runs: list[tuple[dict, list, float]] = []  # consecutive parameters with equal step counts
        for group in optimizer.param_groups:
            with_gradient = [p for p in group["params"] if p.grad is not None]
            for steps, parameters in itertools.groupby(with_gradient, self._steps):
                self.runs.append((group, list(parameters), steps))

    def _steps(self, p: Tensor) -> float:
        count = self.optimizer.state.get(p, {}).get("step")
        return float(count) if type(count) is Tensor else 0.0


def optimizer_windows(
    optimizers: list[tuple[OptimizerState, int, int]], instructions: list[tuple]
) -> tuple[tuple[Window, ...], list[GroupCount]]:
    """Return the instructions of each group, after checking that `OptimizerProbe` gives the same floats.

    Raises NotRepeatable if an optimiser does anything else in its step.
    """
    windows, counts = [], []
    for before, start, end in optimizers:
        kind = type(before.optimizer)
        if getattr(torch.optim, kind.__name__, None) is not kind:
            raise NotRepeatable(f"{kind.__name__} is not an optimiser of torch.optim")
        ops = [i for i in range(start, end) if instructions[i][0] != "move"]
        for group, parameters, steps in before.runs:
            window, count = _window(before.optimizer, group, parameters, steps, ops, instructions)
            ops = ops[len(window.places) :]
            windows.append(window)
            counts.append(count)
        if ops:
            raise NotRepeatable(f"{kind.__name__} runs ops in its step besides the update of each parameter")
    return tuple(windows), counts


def _window(
    optimizer: Optimizer, group: dict, parameters: list, steps: float, ops: list[int], instructions: list
) -> tuple[Window, GroupCount]:
    count = GroupCount(optimizer, group, parameters)
    name = type(optimizer).__name__
    state = optimizer.state.get(parameters[0], {})
    kind = GroupKind(name, count.all_settings(), tuple(k for k, v in state.items() if v is not None))
    try:
        probe = OptimizerProbe(kind)
        expected = probe.floats(steps, {})
        for ahead in range(1, _AHEAD):
            if [op for op, _ in probe.floats(steps + ahead, {})] != [op for op, _ in expected]:
                raise NotRepeatable(f"later steps of {name} run other ops than the recorded one")
    except (RuntimeError, TypeError, ValueError, KeyError, AssertionError) as error:
        raise NotRepeatable(f"the settings of {name} cannot be computed in advance: {error}") from None
    window = Window(tuple(ops[: len(parameters) * len(expected)]), len(expected), kind)
    for i, place in enumerate(window.places):
        op, floats = expected[i % window.ops]
        done, content, _, what = instructions[place]
        if done != "op" or what != op or tuple(content[FLOATS]) != floats:
            raise NotRepeatable(
                f"{name} updates parameter {i // window.ops} of a group by other ops than the rest"
            )
    return window, count


class GroupCount:
    """The settings and the step count of a group of parameters."""

    def __init__(self, optimizer: Optimizer, group: dict, parameters: list) -> None:
        self.group = group
        states = [optimizer.state[p] for p in parameters if p in optimizer.state]
        plain = [s for state in states for s in state.items() if type(s[1]) is Tensor]
        if any(name != "step" for name, _ in plain) or any(
            not isinstance(v, Tensor | None) for state in states for v in state.values()
        ):
            raise NotRepeatable(f"{type(optimizer).__name__} keeps numbers other than the count of its steps")
        self.steps = [count for _, count in plain]
        self.count: Tensor | None = None
        self.states = states
        self.settings = self.all_settings()
        if any(isinstance(v, Tensor) for v in self.settings.values()):
            raise NotRepeatable(f"a setting of {type(optimizer).__name__} is a tensor; use a number")

    def all_settings(self) -> dict[str, Any]:
        return {name: value for name, value in self.group.items() if name != "params"}

    def share_count(self) -> None:
        """Make the step counts of all parameters views of one tensor, so that one op increments them."""
        if not self.steps:
            return
        base = self.steps[0]._base
        if base is not None and base.numel() == len(self.steps) and all(s._base is base for s in self.steps):
            self.count = base  # done by another recording
        else:
            self.count = torch.stack(self.steps)
            for state, own in zip(self.states, self.count.unbind(), strict=True):
                state["step"] = own

    def alike(self) -> bool:
        """Return whether the settings equal the recorded ones; floats may change, but not to or from 0."""
        now = self.all_settings()
        return now.keys() == self.settings.keys() and all(
            _alike(now[name], value) for name, value in self.settings.items()
        )

    def next_step(self) -> tuple[float, dict[str, Any]]:
        """Return the steps taken so far and the settings, and increment the count."""
        if self.count is None:
            return 0.0, self.all_settings()
        taken = self.states[0]["step"].item()
        self.count.add_(1)
        return taken, self.all_settings()


def _alike(now: Any, before: Any) -> bool:
    if type(now) is float and type(before) is float:
        return (now == 0) == (before == 0)
    if type(now) is tuple and type(before) is tuple:
        return len(now) == len(before) and all(map(_alike, now, before))
    return now is before or equal_atoms(now, before)
