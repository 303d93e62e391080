"""Training: all lanes in one step."""

from . import losses as lane_losses
from .adagrad import Adagrad
from .adam import Adam, AdamW
from .clipping import clip_lane_norms_, clip_lane_values_
from .lift import lift
from .lion import Lion
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
    "LaneLambdaLR",
    "LaneSchedulers",
    "Lion",
    "Population",
    "RMSprop",
    "TrainStep",
    "clip_lane_norms_",
    "clip_lane_values_",
    "lane_losses",
    "lift",
]
