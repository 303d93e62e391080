"""Signals beside eager PyTorch, plain SPMD DTensor and FSDP2 under torchrun: rounds in turns, one run.

    python benchmarks/signals.py --workers 4          CPU
    python benchmarks/signals.py --workers 1 --gpu    one GPU, without the peers under torchrun

Prints one JSON object: for each way microseconds of a small matmul, milliseconds of a training step of an
MLP, and microseconds until a step is issued, medians over the rounds.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import timedelta

import torch
from torch import nn

from wide_compiler.benchmark.document import provenance

HIDDEN, ROWS, LAYERS = 256, 256, 3
ROUNDS, STEPS, OPS = 7, 20, 200
WAIT = timedelta(minutes=30)


def mlp(device="cpu"):
    torch.manual_seed(0)
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(HIDDEN, HIDDEN), nn.ReLU())]
    return nn.Sequential(*layers).to(device)


class Way:
    """op, step: one call of each; finish: waits for all that was issued."""

    def __init__(self, op, step, finish):
        self.op, self.step, self.finish = op, step, finish

    def warm_up(self):
        for _ in range(5):
            self.step()
        if self.op is not None:
            self.op()
        self.finish()

    def round(self):
        """Seconds of one op, of one step, and until one step is issued."""
        times = {}
        if self.op is not None:
            times["us_per_op"] = self._timed(self.op, OPS) * 1e6
        issued = []

        def step():
            start = time.perf_counter()
            self.step()
            issued.append(time.perf_counter() - start)

        times["ms_per_step"] = self._timed(step, STEPS) * 1e3
        return times | {"us_to_issue_a_step": statistics.median(issued) * 1e6}

    def _timed(self, function, count):
        start = time.perf_counter()
        for _ in range(count):
            function()
        self.finish()
        return (time.perf_counter() - start) / count


def training(model, x, here=contextlib.nullcontext, before_update=lambda model: None, wrap=lambda step: step):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    last = []

    def step(x):
        with here():
            loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        before_update(model)
        optimizer.step()
        return loss.detach()

    wrapped = wrap(step)

    def call():
        last[:] = [wrapped(x)]

    return call, lambda: last[0]


def eager(device):
    x = torch.randn(64, 64, device=device)
    step, last = training(mlp(device), torch.randn(ROWS, HIDDEN, device=device))
    return Way(lambda: x @ x, step, lambda: last().cpu())


def signals(gt, workers, parameters=None, wrap=lambda step: step):
    name = f"{workers} {parameters}"
    shard = gt.ShardConfig(axis=0, workers=range(workers), parameters=parameters)
    gt.register_config(name, gt.SignalConfig(shard=shard))

    def here():
        return gt.signal.context(name)

    layer = nn.Linear(64, 64, bias=False)
    with here():
        x, data = gt.randn(64, 64), gt.randn(ROWS, HIDDEN)
        w = gt.adopt(layer).weight.detach()
    products = [x]

    def op():
        products[0] = x @ w

    step, last = training(mlp(), data, here, wrap=wrap)
    return Way(op if parameters is None else None, step, lambda: (last().cpu(), products[0].cpu()))


# ---- peers under torchrun


def dtensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    x = distribute_tensor(torch.randn(64, 64), mesh, [Shard(0)])
    w = distribute_tensor(torch.randn(64, 64), mesh, [Replicate()])
    model = distribute_module(mlp(), mesh)
    data = distribute_tensor(torch.randn(ROWS, HIDDEN), mesh, [Shard(0)])

    def sum_gradients(model):  # as data-parallel training does: once
        for p in model.parameters():
            p.grad = p.grad.redistribute(placements=p.placements)

    step, last = training(model, data, before_update=sum_gradients)
    return Way(lambda: x @ w, step, lambda: last().full_tensor())


def fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = mlp()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    step, _ = training(model, torch.randn(ROWS // torch.distributed.get_world_size(), HIDDEN))
    return Way(None, step, torch.distributed.barrier)


PEERS = {"plain SPMD DTensor, torchrun": dtensor, "FSDP2, torchrun": fsdp}


def peer(name, port):
    """What each rank runs under torchrun: a round whenever the benchmark asks for one; rank 0 answers."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=WAIT)
    way = PEERS[name]()
    way.warm_up()
    for i in range(ROUNDS):
        store.get(f"{name} {i}")
        times = way.round()
        if dist.get_rank() == 0:
            store.set(f"{name} {i} done", json.dumps(times))
    dist.destroy_process_group()


class Torchrun:
    """A peer, asked for its rounds one by one; between them it waits."""

    def __init__(self, name, workers, store):
        self.name, self.store, self.rounds = name, store, 0
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [
            *launcher,
            f"--nproc-per-node={workers}",
            __file__,
            "--peer",
            name,
            "--port",
            str(store.port),
        ]
        self.process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def warm_up(self):
        """It does so by itself."""

    def round(self):
        self.store.set(f"{self.name} {self.rounds}", "go")
        answer = json.loads(self.store.get(f"{self.name} {self.rounds} done"))
        self.rounds += 1
        return answer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--peer", help="run as one rank of a peer")
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    if options.peer:
        peer(options.peer, options.port)
        return
    import wide_compiler.signals as gt

    torch.set_num_threads(1)
    workers = options.workers
    (gt.gpu_workers if options.gpu else gt.cpu_workers)(workers)
    ways = {"eager": eager("cuda" if options.gpu else "cpu")}
    for count in sorted({1, workers}):
        ways[f"signals, {count} workers"] = signals(gt, count)
        ways[f"signals, {count} workers, gt.step"] = signals(gt, count, wrap=gt.step)
    if workers > 1:
        ways[f"signals, {workers} workers, cut parameters, gt.step"] = signals(gt, workers, 0, gt.step)
        if not options.gpu:
            store = torch.distributed.TCPStore(
                "127.0.0.1", 0, is_master=True, timeout=WAIT, wait_for_workers=False
            )
            ways |= {name: Torchrun(name, workers, store) for name in PEERS}
    for way in ways.values():
        way.warm_up()
    rounds = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            rounds[name].append(way.round())
    gt.shutdown()
    medians = {
        name: {key: round(statistics.median(t[key] for t in times), 1) for key in times[0]}
        for name, times in rounds.items()
    }
    head = provenance(torch.device("cuda" if options.gpu else "cpu"))
    setting = {"load": os.getloadavg()[0], "mlp": f"{LAYERS} x Linear({HIDDEN}), {ROWS} rows, SGD"}
    print(json.dumps({**head, **setting, **medians}, indent=2))


if __name__ == "__main__":
    main()
