"""Training: all lanes in one step, each with settings, losses and a fate of its own."""

from . import losses as lane_losses
from .adagrad import Adagrad
from .adam import Adam, AdamW
from .checkpoint import Checkpoints
from .clipping import clip_lane_norms_, clip_lane_values_
from .data import PerLane, Shared, Stacked
from .early_stop import EarlyStop
from .evaluate import evaluate
from .fit import fit
from .folds import folds
from .history import History, Stop
from .lift import lift
from .lion import Lion
from .moment import Moment
from .population import Population
from .rmsprop import RMSprop
from .schedules import LaneLambdaLR, LaneSchedulers
from .sgd import SGD
from .step import TrainStep

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Checkpoints",
    "EarlyStop",
    "History",
    "LaneLambdaLR",
    "LaneSchedulers",
    "Lion",
    "Moment",
    "PerLane",
    "Population",
    "RMSprop",
    "Shared",
    "Stacked",
    "Stop",
    "TrainStep",
    "clip_lane_norms_",
    "clip_lane_values_",
    "evaluate",
    "fit",
    "folds",
    "lane_losses",
    "lift",
]
