"""The loop of `fit`."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, InputError
from .checkpoint import Checkpoints
from .data import make_batch
from .early_stop import Best
from .evaluate import evaluate
from .fit_options import FitOptions
from .history import History, Stop
from .lane_step import PRECISIONS, LaneStep
from .moment import Moment
from .population import Population
from .progress_line import ProgressLine, listeners
from .random_state import random_state, set_random_state
from .removed_lanes import RemovedLanes
from .run_state import generator_states, lane_tensors, restore_run, run_state, set_generator_states

# Reading losses synchronises with the GPU, so on CUDA they are checked for nan only every so many steps.
CUDA_POLL = 20


class FitLoop:
    """State of one training run, and the loop itself."""

    def __init__(self, lanes: Population, plan: FitOptions):
        self.lanes, self.plan = lanes, plan
        self.wide, self.optimizer, self.n = lanes.wide, lanes.optimizer, lanes.wide.n
        self.leaving = RemovedLanes(lanes, plan)
        self.line = ProgressLine(plan.progress)
        self.callbacks = (*plan.callbacks, self.line) if self.line.shown else plan.callbacks
        self.take_step = LaneStep(lanes, plan.loss, plan.data.door, plan.clip, plan.precision)
        self.history = History(self.n, mode=plan.mode)
        self.best = Best(self.n, plan.early_stop, plan.mode)
        self.checkpoints = None if plan.checkpoint is None else Checkpoints(plan.checkpoint, plan.keep)
        self.step = self.epoch = 0
        self.position = 0  # batches read in this epoch
        self.epoch_began = 0  # step at the start of the epoch
        # State of all generators at the start of the epoch: it determines the order of the data.
        self.epoch_random: dict[str, Any] = {}
        self.rows: list[Tensor] = []  # losses not yet in the history
        self.polled = 0  # number of these already checked
        self.metrics: dict[str, Tensor] = {}
        self.saved: tuple[int, int, int] | None = None  # position of the last checkpoint
        self.device = self.wide._device()
        self.poll_every = CUDA_POLL if self.device.type == "cuda" else 1

    def run(self) -> History:
        for lane in (~self.leaving.active).nonzero().flatten().tolist():
            self.history.stopped[lane] = Stop(0, "it was masked from the beginning")
        self._resume()
        try:
            while not self._why_ended():
                self._run_epoch()
            self._poll()
            self._save()
            if self.plan.validation is not None and self.step not in self.history.validated_at:
                self._note_best(self._validate())  # after saving: a resumed run would not validate here
            self.leaving.come_back()
            self._flush()
            self.history.ended = self._why_ended()
            if self.plan.early_stop is not None and self.plan.early_stop.restore:
                self.best.restore(lane_tensors(self.wide))
            self._call("end")
        finally:
            self.leaving.come_back()
            for callback in self.callbacks:
                if hasattr(callback, "close"):
                    callback.close()
        return self.history

    def _why_ended(self) -> str:
        if not bool(self.leaving.active.any()):
            return "no lane is left"
        if self.plan.steps is not None and self.step >= self.plan.steps:
            return f"all {self.plan.steps} steps are done"
        if self.plan.epochs is not None and self.epoch >= self.plan.epochs:
            return f"all {self.plan.epochs} epochs are done"
        return ""

    def _run_epoch(self) -> None:
        batches = self._open_epoch()
        while True:
            raw = list(islice(batches, self.plan.accumulate))
            if not raw:
                break
            self.position += len(raw)
            if self.plan.data.over:
                self.stop_lanes(self.plan.data.over, "its data has ended")
            if self._why_ended():
                return
            self._run_step(raw)
            if self._why_ended():
                return
        if not self.position:
            again = "; a generator can be read only once" if self.epoch else ""
            raise InputError(f"the data gave no batches in epoch {self.epoch + 1}{again}")
        self._end_epoch()

    def _open_epoch(self) -> Iterator[Any]:
        """Return an iterator over the epoch; after resuming, skip batches read before the interruption."""
        self.plan.data.begin_epoch(self.epoch)
        if not self.position:
            self.epoch_random = self._random_state()
            self.epoch_began = self.step
            return iter(self.plan.data)
        now = self._random_state()
        self._set_random_state(self.epoch_random)
        batches = iter(self.plan.data)
        skipped = sum(1 for _ in islice(batches, self.position))
        if skipped < self.position:
            raise CheckpointError(
                f"the checkpoint was made after {self.position} batches of epoch {self.epoch + 1}, the data "
                f"has only {skipped}; resume with the data that it was made with"
            )
        self._set_random_state(now)
        return batches

    def _run_step(self, raw: list[Any]) -> None:
        if self.leaving.may_leave():
            self.leaving.leave()
            self.take_step.select(self.leaving)
        losses = self.leaving.spread(self._take_step(raw))
        self.step += 1
        self.rows.append(losses if losses.dtype in (torch.float32, torch.float64) else losses.float())
        self._schedule("step")
        if self.step % self.poll_every == 0:
            self._poll()
        self._call("step")
        if self.plan.validate_every and self.step % self.plan.validate_every == 0:
            self._judge(self._validate())
        if self.plan.checkpoint_every and self.step % self.plan.checkpoint_every == 0:
            self._save()

    def _take_step(self, raw: list[Any]) -> Tensor:
        """Return the losses of the lanes in the model."""
        door = self.plan.data.door

        def batches() -> list[Any]:
            rows = [self.leaving.rows(r, door) for r in raw]
            return [make_batch(r, self.plan.split, self.device, door) for r in rows]

        try:
            return self.take_step(batches())
        except (ValueError, RuntimeError):
            if self.take_step.checked or len(self.leaving.kept) == self.n:
                raise
        # The loss may hold values for all N lanes and fail for fewer: put all lanes back, and keep them.
        self.leaving.come_back()
        self.leaving.allowed = False
        self.take_step.select(self.leaving)
        return self.take_step(batches())

    def _schedule(self, event: str, *values: Tensor) -> None:
        if self.plan.scheduler is not None and self.plan.schedule == event:
            self.plan.scheduler.step(*values)

    def _end_epoch(self) -> None:
        self._poll()
        self._schedule("epoch")
        if self.plan.validation is None:
            self._flush()
            self._judge(self.history.losses[self.epoch_began :].double().mean(0))
        elif self.plan.validate_every is None:
            self._judge(self._validate())
        self.epoch += 1
        self.position = 0
        self.history.epochs = self.epoch
        self._call("epoch")
        if self.plan.checkpoint_every is None:
            self._save()

    def _validate(self) -> Tensor:
        assert self.plan.validation is not None
        autocast = PRECISIONS[self.plan.precision]
        options: dict[str, Any] = {"split": self.plan.split, "autocast": autocast, "leaving": self.leaving}
        found = evaluate(self.wide, self.plan.metrics, self.plan.validation, **options)
        self.metrics = {name: self.leaving.spread(values) for name, values in found.items()}
        past = self.history.metrics
        for name, values in self.metrics.items():
            before = past.get(name, values.new_empty(0, self.n))
            past[name] = torch.cat([before, values.unsqueeze(0)])
        self.history.validation = past[self.plan.monitor]
        self.history.validated_at.append(self.step)
        self._call("validation")
        return self.metrics[self.plan.monitor]

    def _note_best(self, values: Tensor) -> list[int]:
        """Record one validation, `[N]`, and return the active lanes whose patience has run out."""
        tensors = lane_tensors(self.wide)
        return self.best.update(values, self.step, self.leaving.active, tensors, self.leaving.kept)

    def _judge(self, values: Tensor) -> None:
        self._schedule("validation", values)
        for lane in self._note_best(values):
            best, step = float(self.best.value[lane]), int(self.best.step[lane])
            than = f"no better than {best:.6g} of step {step}" if step >= 0 else "not a finite number"
            self.stop_lanes([lane], f"its validation was {than}, {self.best.waited[lane]} times in a row")

    def stop_lanes(self, lanes: Sequence[int], reason: str, step: int | None = None) -> None:
        try:
            self.lanes.mask(self.leaving.positions(lanes))
        except ValueError as error:  # a trained parameter that all lanes share
            error.add_note(f"lanes {list(lanes)} were to stop: {reason}")
            raise
        for lane in lanes:
            self.history.stopped.setdefault(lane, Stop(self.step if step is None else step, reason))

    def _poll(self) -> None:
        """Stop lanes with a non-finite loss."""
        new = self.rows[self.polled :]
        if not new:
            return
        self.polled = len(self.rows)
        if len(new) == 1 and math.isfinite(new[0].sum()):  # fast check after every step on a CPU
            return
        bad = ~torch.stack(new).isfinite().cpu() & self.leaving.active.cpu()
        for lane in bad.any(0).nonzero().flatten().tolist():
            row = int(bad[:, lane].long().argmax())
            value = float(new[row][lane])
            self.stop_lanes([lane], f"its loss is {value}", self.step - len(new) + row + 1)

    def _call(self, event: str) -> None:
        if not self.callbacks and not listeners:
            return
        past = self.history.losses
        nothing = past[-1] if len(past) else torch.full((self.n,), float("nan"))
        losses = self.rows[-1] if self.rows else nothing
        moment = Moment(
            *(event, self.step, self.epoch, losses, self.metrics, self.metrics.get(self.plan.monitor)),
            *(self.leaving.active, self.plan.total_steps(), self.lanes, self.history),
            stop=self.stop_lanes,
        )
        callbacks: list[Any] = [*self.callbacks, *listeners]
        for callback in callbacks:
            callback(moment)

    def _flush(self) -> None:
        """Move the losses so far into the history."""
        self._poll()
        if self.rows:
            new = torch.stack(self.rows).cpu()
            self.history.losses = torch.cat([self.history.losses.view(-1, self.n).to(new), new])
        self.rows, self.polled = [], 0
        self.history.best, self.history.best_step = self.best.value, self.best.step

    def _save(self) -> None:
        here = (self.step, self.epoch, self.position)
        if self.checkpoints is not None and self.saved != here:
            self._flush()
            self.leaving.come_back()  # a checkpoint contains all lanes
            self.take_step.select(self.leaving)
            self.checkpoints.save(self.step, run_state(self))
            self.saved = here

    def _resume(self) -> None:
        if self.checkpoints is None:
            return
        latest = self.checkpoints.latest()
        if latest is None:
            if self.plan.resume is True:
                raise CheckpointError(
                    f"there is no checkpoint in {self.checkpoints.folder} to resume from; resume='auto' "
                    f"starts from the beginning then"
                )
            return
        if not self.plan.resume:
            raise CheckpointError(
                f"{latest} is of an earlier training; resume=True continues it, another folder keeps both"
            )
        restore_run(self, self.checkpoints.load(latest), str(latest))

    def _random_state(self) -> dict[str, Any]:
        return {**random_state(self.wide), "generators": generator_states(self.plan.data)}

    def _set_random_state(self, state: dict[str, Any]) -> None:
        set_random_state(self.wide, state)
        set_generator_states(self.plan.data, state["generators"])
