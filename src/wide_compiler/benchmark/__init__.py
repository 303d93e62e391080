"""Benchmarks: wide models and layers against the loop and against alternatives such as vmap and JAX.

workloads   names            -> workloads (primitive_cases)
runner      workloads        -> rows: built, compared with the loop, timed interleaved
ours, peers, jax_peer: the candidates of a row
tables, document, plot: rows -> a table, a JSON file, a picture
"""

from .benchmark_row import BenchmarkRow, crossover
from .document import device_name, document, timestamped, write
from .primitive_cases import PRIMITIVE_CASES
from .runner import Options, Point, measure, plan, run
from .workload import PRESETS, Preset, Workload
from .workloads import MODELS, choices, find

__all__ = [
    "MODELS",
    "PRESETS",
    "PRIMITIVE_CASES",
    "BenchmarkRow",
    "Options",
    "Point",
    "Preset",
    "Workload",
    "choices",
    "crossover",
    "device_name",
    "document",
    "find",
    "measure",
    "plan",
    "run",
    "timestamped",
    "write",
]
