"""Training: all lanes in one step."""

from .checkpoint import Checkpoints
from .data import PerLane, Shared, Stacked
from .early_stop import EarlyStop
from .evaluate import evaluate
from .fit import fit
from .folds import folds
from .history import History, Stop
from .loop import Moment
from .population import Population
from .step import TrainStep

__all__ = [
    "Checkpoints",
    "EarlyStop",
    "History",
    "Moment",
    "PerLane",
    "Population",
    "Shared",
    "Stacked",
    "Stop",
    "TrainStep",
    "evaluate",
    "fit",
    "folds",
]
