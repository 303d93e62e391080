"""Times the Triton kernels of `wide_compiler.kernels` against the torch ops they replace; needs a GPU.

    python benchmarks/kernels_dev.py

Every line: forward or forward+backward, ms of torch, ms of ours, how many times faster ours is, and the
largest error of each, relative to the largest value of the float64 result. Calls are timed in CUDA-graph
replay, so that Python and launches do not count. A case that fails prints its error and the rest go on.
"""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from wide_compiler.kernels import chain, linear

LINEAR = (
    (32, 1024, 256, 768),
    (32, 1024, 256, 1024),
    (32, 1024, 1024, 256),
    (32, 256, 1024, 4096),
    (8, 512, 256, 1024),
    (100, 32, 64, 128),
)  # lanes, M, K, O
CHAINS = (
    ("64-128-64 relu", 100, 32, (64, 128, 64), ("relu", "none")),
    ("64-128-64 relu", 1000, 32, (64, 128, 64), ("relu", "none")),
    ("8x64 gelu", 20, 32, (64,) * 9, ("gelu",) * 8),
)  # name, lanes, batch, widths, activations
CALLS = 10  # in one graph: a replay then costs little beside them


def graph_ms(call: Callable[[], object]) -> float:
    """Milliseconds of one call, the median of 20 replays of a graph with CALLS calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles and tunes the kernels: neither can be captured
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / CALLS)
    return statistics.median(times)


def error(actual: list[Tensor], expected: list[Tensor]) -> float:
    """The worst tensor's largest error, relative to its largest value."""
    pairs = zip(actual, expected, strict=True)
    return max(((a.double() - e).abs().max() / e.abs().max().clamp_min(1e-30)).item() for a, e in pairs)


def compare(name: str, theirs: Callable, ours: Callable, inputs: list[Tensor]) -> None:
    """Forward, then forward+backward, of two functions of the tensors of `inputs`."""
    wide = [t.double().requires_grad_() for t in inputs]
    y64 = theirs(*wide)
    dy = torch.randn(y64.shape, device="cuda", dtype=inputs[0].dtype)
    g64 = list(torch.autograd.grad(y64, wide, dy.double()))
    y64 = y64.detach()

    def forward(f: Callable) -> list[Tensor]:
        with torch.no_grad():
            return [f(*inputs)]

    def both(f: Callable) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in inputs]
        return list(torch.autograd.grad(f(*leaves), leaves, dy))

    for what, run, want in (("fwd", forward, [y64]), ("fwd+bwd", both, g64)):
        try:
            started = time.perf_counter()
            errors = [error(run(f), want) for f in (theirs, ours)]
            prepared = time.perf_counter() - started
            ms = [graph_ms(lambda f=f, run=run: run(f)) for f in (theirs, ours)]
            print(
                f"{name:52} {what:8} torch {ms[0]:8.4f} ms  ours {ms[1]:8.4f} ms  x{ms[0] / ms[1]:5.2f}  "
                f"err torch {errors[0]:.1e} ours {errors[1]:.1e}  (first calls {prepared:.1f} s)",
                flush=True,
            )
        except Exception:
            print(f"{name:52} {what:8} FAILED\n{traceback.format_exc(limit=-3)}", flush=True)
            torch.cuda.synchronize()


def bench_linear(lanes: int, m: int, k: int, o: int, dtype: torch.dtype, label: str) -> None:
    x = torch.randn(lanes, m, k, device="cuda", dtype=dtype)
    weight = torch.randn(lanes, o, k, device="cuda", dtype=dtype) / k**0.5
    bias = torch.randn(lanes, o, device="cuda", dtype=dtype)

    def theirs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    compare(f"linear L{lanes} M{m} K{k} O{o} {label}", theirs, linear.lane_linear, [x, weight, bias])
    for key, config in linear._matmul_kernel.cache.items():
        if key not in shown:
            shown.add(key)
            print(f"    tuned {key[:7]}: {config}", flush=True)


shown: set = set()


def bench_chain(name: str, lanes: int, batch: int, dims: tuple, activations: tuple, label: str) -> None:
    layers = len(activations)
    x = torch.randn(lanes, batch, dims[0], device="cuda")
    weights = [torch.randn(lanes, o, i, device="cuda") / i**0.5 for i, o in pairwise(dims)]
    biases = [torch.randn(lanes, o, device="cuda") for o in dims[1:]]

    def theirs(x: Tensor, *rest: Tensor) -> Tensor:
        for w, b, act in zip(rest[:layers], rest[layers:], activations, strict=True):
            x = linear.ACTIVATIONS[act](torch.baddbmm(b.unsqueeze(1), x, w.mT))
        return x

    def ours(x: Tensor, *rest: Tensor) -> Tensor:
        return chain.lane_chain(x, rest[:layers], rest[layers:], activations)

    compare(f"chain {name} N{lanes} B{batch} {label}", theirs, ours, [x, *weights, *biases])


def main() -> None:
    import triton

    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__, flush=True)
    torch.manual_seed(0)
    cases: list[tuple] = []
    for setting in ("highest", "high"):
        cases += [(setting, bench_chain, (*case, setting)) for case in CHAINS]
        cases += [(setting, bench_linear, (*case, torch.float32, setting)) for case in LINEAR]
    cases += [("highest", bench_linear, (*case, torch.bfloat16, "bf16")) for case in LINEAR[:1]]
    for setting, bench, args in cases:
        torch.set_float32_matmul_precision(setting)
        try:
            bench(*args)
        except Exception:
            print(f"{bench.__name__}{args} FAILED\n{traceback.format_exc(limit=-3)}", flush=True)


if __name__ == "__main__":
    main()
