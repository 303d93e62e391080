"""A function captured in one CUDA graph: all its kernels launched at once."""

from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 3


def graphed(function: Callable[[], Any]) -> Callable[[], Any]:
    """A function that replays the graph and gives the captured call's own (overwritten) outputs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            function()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function()

    def replay() -> Any:
        graph.replay()
        return outputs

    return replay


def on_streams(functions: list[Callable[[], Any]], count: int = 16) -> Callable[[], list[Any]]:
    """A function that runs all functions, spread over `count` streams."""
    streams = [torch.cuda.Stream() for _ in range(count)]

    def run() -> list[Any]:
        main = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(main)
        outputs = []
        for i, function in enumerate(functions):
            with torch.cuda.stream(streams[i % count]):
                outputs.append(function())
        for stream in streams:
            main.wait_stream(stream)
        return outputs

    return run
