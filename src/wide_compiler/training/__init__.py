"""Training: all lanes in one step."""

from . import losses as lane_losses
from .adagrad import Adagrad
from .adam import Adam, AdamW
from .clipping import clip_lane_norms_, clip_lane_values_
from .evolution import EvolutionStrategy
from .lift import lift
from .lion import Lion
from .population import Population
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

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Choice",
    "EvolutionStrategy",
    "LaneLambdaLR",
    "LaneSchedulers",
    "Lion",
    "LogUniform",
    "Population",
    "RMSprop",
    "TrainStep",
    "Uniform",
    "clip_lane_norms_",
    "clip_lane_values_",
    "exploit_and_explore",
    "folds",
    "grid_search",
    "halve",
    "lane_losses",
    "lift",
    "random_search",
    "ranked",
]
