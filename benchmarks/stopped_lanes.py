"""What a step of `fit` costs when lanes have stopped: with and without leaving the computation.

    python benchmarks/stopped_lanes.py

A callback stops all but 32, then 8, then 2 of 64 lanes; the median time between two steps is taken at each
stage. In turns: `fit` as it is, and `fit(leave=False)`, in which stopped lanes are computed and masked.
"""

import statistics
import time

import torch
from torch import nn

import wide_compiler
from wide_compiler.training import AdamW, fit, lane_losses

LANES, STAGES, STEPS, ROUNDS = 64, (64, 32, 8, 2), 60, 5


class Stops:
    """Stops lanes at the end of each stage, and notes when steps end."""

    by_number = False

    def __init__(self):
        self.ends = []

    def __call__(self, moment):
        if moment.event != "step":
            return
        self.ends.append(time.perf_counter())
        stage, into = divmod(moment.step, STEPS)
        if into == 0 and stage < len(STAGES):
            moment.stop(list(range(STAGES[stage], STAGES[stage - 1])), "enough")


def one_training(leave, model, batches):
    torch.manual_seed(0)
    wide = wide_compiler.compile(model, batches[0][0][:2], n=LANES)
    stops = Stops()
    fit(
        wide,
        AdamW(wide.parameters(), lr=1e-3),
        lane_losses.cross_entropy,
        batches,
        steps=STEPS * len(STAGES),
        callbacks=[stops],
        progress=False,
        leave=leave,
    )
    took = [b - a for a, b in zip(stops.ends, stops.ends[1:], strict=False)]
    # The first steps of a stage measure which way is fastest with that many lanes.
    return [statistics.median(took[i * STEPS + STEPS // 2 : (i + 1) * STEPS - 1]) for i in range(len(STAGES))]


def main():
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    batches = [(torch.randn(64, 32), torch.randint(0, 10, (64,))) for _ in range(10)]
    times = {leave: [] for leave in (True, False)}
    for _ in range(ROUNDS):
        for leave in times:
            times[leave].append(one_training(leave, model, batches))
    print(f"{'lanes left':>12}{'leave, ms':>12}{'stay, ms':>12}")
    for i, lanes in enumerate(STAGES):
        leave, stay = (1e3 * statistics.median(row[i] for row in times[way]) for way in (True, False))
        print(f"{lanes:12}{leave:12.2f}{stay:12.2f}")


if __name__ == "__main__":
    main()
