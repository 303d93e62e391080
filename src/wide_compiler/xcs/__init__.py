"""Automatic parallelism for plain Python: the same results, exceptions, order and side effects, faster."""

from .config import Config
from .independent import independent
from .ir import IRGraph, IRNode, graph_of
from .jit import XcsWarning, jit
from .mapping import vmap
from .module import get_tree_functions, module, static
from .parallelism import GraphParallelismAnalyzer, ParallelismAnalyzer, ParallelismInfo
from .proof.effects import Effect
from .site_rows import Explanation
from .strategies import (
    AdaptiveStrategy,
    ExecutionStrategy,
    ParallelStrategy,
    SequentialStrategy,
    StrategySelector,
    VectorizedStrategy,
)
from .work import Mismatch, Miss

__all__ = [
    "AdaptiveStrategy",
    "Config",
    "Effect",
    "ExecutionStrategy",
    "Explanation",
    "GraphParallelismAnalyzer",
    "IRGraph",
    "IRNode",
    "Mismatch",
    "Miss",
    "ParallelStrategy",
    "ParallelismAnalyzer",
    "ParallelismInfo",
    "SequentialStrategy",
    "StrategySelector",
    "VectorizedStrategy",
    "XcsWarning",
    "get_tree_functions",
    "graph_of",
    "independent",
    "jit",
    "module",
    "static",
    "vmap",
]
