"""Signals configured from Python: data, pipeline and model parallelism, and a choice made at run time.

    python examples/config_from_python.py          writes config_from_python.png

Four local CPU workers are started by the first use of a signal.
"""

import matplotlib
import torch

import wide_compiler.signals as gt
from wide_compiler.signals import ShardConfig, SignalConfig

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SHOWN: dict[str, list[tuple[str, tuple[int, ...], str]]] = {}  # title -> name, workers and layout of tensors


def show(title: str, **tensors: torch.Tensor) -> None:
    SHOWN[title] = [(name.replace("_", " "), *gt.debug.placement(x)) for name, x in tensors.items()]


def picture(path: str) -> None:
    """Every tensor as a box, cut as it lies on the workers."""
    colours = ["#4c5fd5", "#e8833a", "#4ca68a", "#b5539c"]
    figure, panels = plt.subplots(1, len(SHOWN), figsize=(11, 2.5), layout="constrained")
    for axes, (title, tensors) in zip(panels, SHOWN.items(), strict=True):
        for place, (name, workers, layout) in enumerate(tensors):
            for part, worker in enumerate(workers):
                size = 1 / len(workers)
                by_column = layout == "S(1)"
                corner = (
                    (place * 1.5 + part * size, 0.0) if by_column else (place * 1.5, 1 - (part + 1) * size)
                )
                shape = (size, 1.0) if by_column else (1.0, size)
                axes.add_patch(plt.Rectangle(corner, *shape, color=colours[worker], ec="white", lw=2))
                middle = corner[0] + shape[0] / 2, corner[1] + shape[1] / 2
                axes.text(*middle, worker, color="white", ha="center", va="center")
            axes.text(place * 1.5 + 0.5, -0.06, name, ha="center", va="top", fontsize=9)
        axes.set(title=title, xlim=(-0.1, 1.5 * len(tensors) - 0.4), ylim=(-0.3, 1.05), aspect="equal")
        axes.axis("off")
    figure.savefig(path, dpi=110)


def data_parallel() -> None:
    with gt.signal.context("data_parallel"):
        batch = gt.randn(128, 64)
        weight = gt.randn(64, 32)
        out = batch @ weight
    show("data parallel", batch=batch, output=out)
    print("data parallel:    ", gt.debug.placement(out))


def model_parallel() -> None:
    with gt.signal.context("model_parallel"):
        layer = gt.nn.Linear(64, 128)
        batch = gt.randn(8, 64)
        out = layer(batch)
    show("model parallel", weight=layer.weight, batch=batch)
    print("model parallel:   ", gt.debug.placement(layer.weight), "->", gt.debug.placement(out))


def pipeline() -> None:
    layer1, layer2 = gt.nn.Linear(16, 16), gt.nn.Linear(16, 1)
    x = gt.randn(32, 16)
    with gt.signal.context("stage_1"):
        hidden = layer1(x).tanh()
    with gt.signal.context("stage_2"):
        out = layer2(hidden)
        loss = out.square().mean()
    loss.backward()
    show("pipeline", stage_1=hidden, stage_2=out)
    print("pipeline:         ", gt.debug.placement(hidden), "->", gt.debug.placement(loss))


def chosen_at_run_time(batch_size: int) -> None:
    workers = [0, 1, 2, 3] if batch_size >= 256 else [0, 1]
    gt.register_config("training", SignalConfig(shard=ShardConfig(axis=0, workers=workers)))
    with gt.signal.context("training"):
        batch = gt.randn(batch_size, 8)
    print(f"batch of {batch_size}:     ", gt.debug.placement(batch))


def training() -> None:
    torch.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(8, 16), gt.nn.Tanh(), gt.nn.Linear(16, 1))
    optimizer = gt.nn.SGD(model.parameters(), lr=0.05)
    x = gt.randn(64, 8)
    y = x.sum(1, keepdim=True)
    for step in range(40):
        with gt.signal.context("data_parallel"):
            loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"training step {step:2d}:  loss {loss.item():.4f}")


def main() -> None:
    everyone = [0, 1, 2, 3]
    gt.register_config("data_parallel", SignalConfig(shard=ShardConfig(axis=0, workers=everyone)))
    gt.register_config("model_parallel", SignalConfig(shard=ShardConfig(axis=1, workers=[0, 1])))
    stage_1 = SignalConfig(shard=ShardConfig(axis=0, workers=[0, 1]), backward_signal="stage_1_backward")
    gt.register_config("stage_1", stage_1)
    gt.register_config("stage_1_backward", SignalConfig(shard=ShardConfig(axis=0, workers=[2, 3])))
    gt.register_config("stage_2", SignalConfig(shard=ShardConfig(axis=0, workers=[2, 3])))
    gt.manual_seed(0)
    data_parallel()
    model_parallel()
    pipeline()
    chosen_at_run_time(512)
    chosen_at_run_time(64)
    training()
    done = [sum(stats["instructions"].values()) for stats in gt.debug.worker_stats()]
    print("instructions run by each worker:", done)
    picture("config_from_python.png")
    print("written to config_from_python.png")
    gt.shutdown()


if __name__ == "__main__":
    main()
