"""Optuna: N trials at a time, as N lanes.

When a trial completes or is pruned, its lane gets the next trial, with new weights, optimiser state and
settings. All lanes read the data epoch by epoch, each in the epoch of its trial.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..api import compile
from ..capture import group_by_variant
from ..config import WideConfig
from ..errors import AlignmentError, ArgumentError, InputError, needs
from ..initialize import reinitialize
from ..training.data import Shared, as_source, split_batch
from ..training.evaluate import evaluate
from ..training.lane_step import PRECISIONS, LaneStep
from ..training.optimizer import LaneOptimizer
from ..training.population import Population
from ..training.random_state import seeded
from ._trial_data import TrialBatches


@dataclass
class LaneTrial:
    """A trial running in a lane."""

    trial: Any
    hyper: Mapping[str, float]
    member: nn.Module
    epoch: int = 0  # number of completed epochs


@dataclass
class Search:
    """Result of `optimize`, in addition to the study.

    Attributes:
        best_model: an ordinary model with the weights of the best trial completed by this search.
        epochs: number of epochs run, each for all lanes at once.
        refilled: number of trials started in a lane that another had left.
    """

    best_model: nn.Module | None = None
    epochs: int = 0
    refilled: int = 0


def optimize(
    study: Any,
    suggest: Callable[[Any], Mapping[str, float]],
    *,
    model: nn.Module | Callable[[Any], nn.Module],
    sample: Any,
    optimizer: Callable[[Any], LaneOptimizer],
    loss: Callable[..., Tensor],
    data: Any,
    validation: Any,
    n_trials: int,
    epochs: int,
    lanes: int = 16,
    metric: Callable[..., Tensor] | None = None,
    clip: float | None = None,
    precision: str | None = None,
    split: Callable[[Any], tuple[Any, tuple]] = split_batch,
    seed: int = 0,
    config: WideConfig | None = None,
    callbacks: Sequence[Callable[[Any, Any], None]] = (),
) -> Search:
    """Run `n_trials` trials of a study, `lanes` of them at a time.

    After each epoch every trial reports its validation to the study's pruner; the last validation is its
    value. A trial with a non-finite value fails. As in any parallel search, an adaptive sampler sees the
    result of a trial only once it is finished.

    Args:
        study: an Optuna study with one objective.
        suggest: `suggest(trial)` returns the settings of one lane under the names of the optimiser's
            `set_lane_values`: `{'lr': trial.suggest_float('lr', 1e-4, 1e-1, log=True)}`.
        model: an ordinary model, reinitialised for each trial; or `model(trial)`, which returns one. Trials
            may differ in weights only. Trial k starts with PyTorch's generator at `seed + k`.
        sample: an input of the model, as for `wide_compiler.compile`.
        optimizer: function from parameters to an optimiser of `wide_compiler.training`; `suggest` sets its
            hyper-parameters per lane.
        loss, clip, precision, split: as in `fit`.
        data: batches for all lanes, read once per epoch; the order in epoch e is seeded by `seed + e`.
        validation: validation batches.
        n_trials: number of trials.
        epochs: epochs per trial.
        lanes: number of trials at a time.
        metric: the validation metric reported to the study; the loss by default.
        callbacks: functions called with (study, finished trial), as in Optuna.
    """
    needs("optuna", "optuna")
    if len(study.directions) != 1:
        raise ArgumentError(f"optimize needs a study of one objective, this one has {len(study.directions)}")
    for name, value in (("n_trials", n_trials), ("epochs", epochs), ("lanes", lanes)):
        if type(value) is not int or value < 1:
            raise ArgumentError(f"{name} must be a positive integer, got {value!r}")
    autocast, metric = PRECISIONS.get(precision), metric or loss
    run = _Run(study, suggest, model, n_trials, epochs, seed, callbacks, metric, split, autocast)
    return run.run(sample, min(lanes, n_trials), optimizer, loss, data, validation, clip, precision, config)


@dataclass
class _Run:
    study: Any
    suggest: Callable[[Any], Mapping[str, float]]
    model: Any
    trials_left: int
    epochs: int
    seed: int
    callbacks: Sequence[Callable[[Any, Any], None]]
    metric: Callable[..., Tensor]
    split: Callable[[Any], tuple[Any, tuple]]
    autocast: torch.dtype | None

    def run(
        self,
        sample: Any,
        lanes: int,
        make_optimizer: Callable[[Any], LaneOptimizer],
        loss: Callable[..., Tensor],
        data: Any,
        validation: Any,
        clip: float | None,
        precision: str | None,
        config: WideConfig | None,
    ) -> Search:
        self.search = Search()
        self.lane_trials: list[LaneTrial | None] = [self._ask() for _ in range(lanes)]
        lane_trials = [lane_trial for lane_trial in self.lane_trials if lane_trial is not None]
        wide = compile([lane_trial.member for lane_trial in lane_trials], sample, config=config)
        self.population = Population(wide, make_optimizer(wide.parameters()))
        for name in lane_trials[0].hyper:
            self.population.optimizer.set_lane_values(name, [trial.hyper[name] for trial in lane_trials])
        doors = ("shared", "stacked")
        steps = {door: LaneStep(self.population, loss, door, clip, precision) for door in doors}
        source, held_out = as_source(data, lanes), as_source(validation, lanes)
        if type(source) is not Shared:
            raise InputError(f"trials share their data; {type(source).__name__} gives each lane its own")
        with seeded(wide, self.seed):
            while any(self.lane_trials):
                epochs = [lane_trial.epoch if lane_trial else None for lane_trial in self.lane_trials]
                for batch in TrialBatches(source, epochs, self.seed, self.split, wide):
                    steps[batch.door]([batch.batch])
                self.search.epochs += 1
                values = evaluate(wide, self.metric, held_out, split=self.split, autocast=self.autocast)
                for lane, value in enumerate(values.tolist()):
                    self._judge(lane, value)
        return self.search

    def _ask(self) -> LaneTrial:
        self.trials_left -= 1
        trial = self.study.ask()
        with torch.random.fork_rng():
            torch.manual_seed(self.seed + trial.number)
            if isinstance(self.model, nn.Module):
                member = copy.deepcopy(self.model)
                reinitialize(member)
            else:
                member = self.model(trial)
        return LaneTrial(trial, dict(self.suggest(trial)), member)

    def _judge(self, lane: int, value: float) -> None:
        """Report a lane's validation. If its trial is finished, tell the study and start the next one."""
        optuna: Any = needs("optuna", "optuna")
        lane_trial = self.lane_trials[lane]
        if lane_trial is None:
            return
        lane_trial.epoch += 1
        finite = abs(value) < float("inf")
        if finite:
            lane_trial.trial.report(value, lane_trial.epoch)
        if not finite:
            self._tell(lane, lane_trial, state=optuna.trial.TrialState.FAIL)
        elif lane_trial.epoch == self.epochs:
            self._tell(lane, lane_trial, values=value)
        elif lane_trial.trial.should_prune():
            self._tell(lane, lane_trial, state=optuna.trial.TrialState.PRUNED)

    def _tell(self, lane: int, lane_trial: LaneTrial, **outcome: Any) -> None:
        lane_trial.trial.set_user_attr("lane", lane)
        told = self.study.tell(lane_trial.trial, **outcome)
        if "values" in outcome and self.study.best_trial.number == told.number:
            self.search.best_model = self.population.wide.lane(lane)
        for callback in self.callbacks:
            callback(self.study, told)
        if not self.trials_left:
            self.lane_trials[lane] = None
            self.population.mask([lane])
            return
        self.lane_trials[lane] = new = self._ask()
        self._check_alike(lane_trial, new)
        self.population.refill([lane], init=lambda member, _: new.member, **dict(new.hyper))
        self.search.refilled += 1

    def _check_alike(self, old: LaneTrial, new: LaneTrial) -> None:
        if group_by_variant([old.member, new.member]) != [0, 0]:
            raise AlignmentError(
                f"the model of trial {new.trial.number} differs from that of trial {old.trial.number}, whose "
                f"lane it was to take, in more than its weights; only weights and optimiser settings may"
            )
        if new.hyper.keys() != old.hyper.keys():
            raise ArgumentError(
                f"trial {new.trial.number} suggests {sorted(new.hyper)}, trial {old.trial.number} suggested "
                f"{sorted(old.hyper)}; let all trials suggest the same"
            )
