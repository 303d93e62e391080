"""Training of all lanes in one step, with hyper-parameters, losses and stopping per lane."""

from . import lane_losses
from .adagrad import Adagrad
from .adam import Adam, AdamW
from .checkpoint import Checkpoints
from .clipping import clip_lane_norms_, clip_lane_values_
from .data import PerLane, Shared, Stacked, fold_batches
from .early_stop import EarlyStop
from .evaluate import evaluate
from .evolution import EvolutionStrategy
from .fit import fit
from .history import History, Stop
from .lift import lift
from .lion import Lion
from .moment import Moment
from .population import Population
from .progress_line import ProgressLine
from .rmsprop import RMSprop
from .schedules import LaneLambdaLR, LaneSchedulers
from .search import (
    Choice,
    LogUniform,
    Uniform,
    exploit_and_explore,
    folds,
    grid_search,
    halve,
    random_search,
    ranked,
)
from .sgd import SGD
from .step import TrainStep
from .tensorboard import TensorBoard

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Checkpoints",
    "Choice",
    "EarlyStop",
    "EvolutionStrategy",
    "History",
    "LaneLambdaLR",
    "LaneSchedulers",
    "Lion",
    "LogUniform",
    "Moment",
    "PerLane",
    "Population",
    "ProgressLine",
    "RMSprop",
    "Shared",
    "Stacked",
    "Stop",
    "TensorBoard",
    "TrainStep",
    "Uniform",
    "clip_lane_norms_",
    "clip_lane_values_",
    "evaluate",
    "exploit_and_explore",
    "fit",
    "fold_batches",
    "folds",
    "grid_search",
    "halve",
    "lane_losses",
    "lift",
    "random_search",
    "ranked",
]
