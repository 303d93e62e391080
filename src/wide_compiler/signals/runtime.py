"""The one engine of this process: started on first use, replaced by `restart()`."""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..config import variable
from ..errors import ArgumentError
from ..observe import instruction_log
from ..workers.engine import Engine
from ..workers.inprocess import InProcessPool
from ..workers.local import LocalPool, abandon_nursery, close_nursery
from ..workers.ray import Cluster, RayPool
from ..workers.stream import Mesh, Pool
from . import config


class Start(NamedTuple):
    """How the workers were asked for; `restart()` asks for the same again.

    backend: of torch.distributed; on a cluster it follows from what each worker has.
    """

    devices: tuple[str, ...]
    backend: str
    cluster: Cluster | None = None

    def pool(self) -> Pool:
        if in_process():
            return InProcessPool()
        if self.cluster is not None:
            return RayPool(len(self.devices), self.cluster)
        return LocalPool(list(self.devices), self.backend)


_engine: Engine | None = None
# What has to be in place while workers run, and only then: each is called at the start and gives what has a
# `remove()`. A hook on all modules, say, which would cost every forward of a script without signals.
while_running: list[Callable[[], Any]] = []
_in_place: list[Any] = []
_start: Start | None = None


def in_process() -> bool:
    """`WIDE_COMPILER_WORKERS=0`: no workers but the script itself."""
    return os.environ.get(variable("WORKERS")) == "0"


def _environment() -> tuple[int | None, Cluster | None]:
    """`WIDE_COMPILER_WORKERS`: how many workers, or the Ray cluster that they live on."""
    given = os.environ.get(variable("WORKERS"), "")
    if given == "ray" or given.startswith("ray://"):
        return None, Cluster(None if given == "ray" else given)
    if given and not given.isdecimal():
        raise ArgumentError(
            f"{variable('WORKERS')} must be a number, 'ray' or 'ray://host:port', got {given!r}"
        )
    return int(given) if given else None, None


def engine() -> Engine:
    """The running engine; starts as many CPU workers as the configured signals name."""
    if _engine is None:
        cpu_workers(_environment()[0] or config.highest_worker() + 1)
    assert _engine is not None
    return _engine


def running() -> Engine | None:
    return _engine


def cpu_workers(n: int) -> None:
    """Start `n` local worker processes, or, with `GT_WORKERS=ray`, actors.

    With fewer running the others join them; with as many, or more, nothing happens.
    """
    _check_count(n)
    cluster = _environment()[1]
    start_workers(Start(("cpu",) * n, "" if cluster else "gloo", cluster))


def gpu_workers(n: int) -> None:
    """Start `n` local workers, one for each GPU; with fewer GPUs they share, with none they run on the
    CPU. With `GT_WORKERS=ray` Ray assigns one GPU to each."""
    _check_count(n)
    cluster = _environment()[1]
    if cluster is not None:
        start_workers(Start(("cuda",) * n, "", cluster._replace(gpus=1)))
        return
    gpus = torch.cuda.device_count()
    if gpus == 0:
        warnings.warn(f"gpu_workers({n}): no GPU here; the workers run on the CPU", stacklevel=2)
        start_workers(Start(("cpu",) * n, "gloo"))
        return
    if gpus < n:
        warnings.warn(
            f"gpu_workers({n}): {gpus} GPU(s) here; workers share them and talk through host memory (gloo)",
            stacklevel=2,
        )
    devices = tuple(f"cuda:{i % gpus}" for i in range(n))
    start_workers(Start(devices, "nccl" if n <= gpus else "gloo"))


def ray_workers(
    n: int,
    address: str | None = None,
    *,
    cpus: float = 1,
    gpus: float = 0,
    strategy: str = "PACK",
    wait: float = 60.0,
) -> None:
    """Start `n` workers as Ray actors.

    address: `host:port` of a cluster, `ray://host:port` of its client server, "auto": a Ray that runs on
        this machine, "local": one of this script's own; None, as `ray.init()` does: $RAY_ADDRESS, else what
        `ray start` has started here, else one of its own.
    cpus, gpus: what Ray reserves for each worker; with a whole GPU each they talk by NCCL.
    strategy: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD, as Ray's placement groups have them.
    wait: seconds until the cluster must have room for all of them.
    """
    _check_count(n)
    if strategy not in ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"):
        raise ArgumentError(f"strategy must be PACK, SPREAD, STRICT_PACK or STRICT_SPREAD, got {strategy!r}")
    if cpus < 0 or gpus < 0 or cpus + gpus == 0 or wait <= 0:
        raise ArgumentError(
            "each worker needs cpus or gpus, and wait must be over 0 s; "
            f"got cpus={cpus!r}, gpus={gpus!r}, wait={wait!r}"
        )
    device = "cuda" if gpus else "cpu"
    start_workers(Start((device,) * n, "", Cluster(address, cpus, gpus, strategy, wait)))


def _check_count(n: int) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ArgumentError(f"the number of workers must be an int of at least 1, got {n!r}")


def start_workers(start: Start) -> None:
    global _engine, _start
    if _engine is not None and not _engine.closed:
        assert _start is not None
        if in_process() or _start._replace(devices=start.devices[:1]) == start._replace(
            devices=_start.devices[:1]
        ):
            grow_to(len(start.devices))
            return
        raise ArgumentError(
            f"{len(_start.devices)} workers on {sorted(set(_start.devices))} run already; call shutdown() "
            f"before you ask for {len(start.devices)} on {sorted(set(start.devices))}"
        )
    instruction_log.configure()
    _engine, _start = Engine(start.pool()), start
    _take_away()  # of workers that have died
    _in_place.extend(put() for put in while_running)
    _engine.mesh((0,))


def grow_to(count: int) -> None:
    """At least `count` workers of the kind that runs; what lives on them stays."""
    global _start
    assert _engine is not None and _start is not None
    have = len(_start.devices)
    if in_process() or count <= have:
        return
    gpus = torch.cuda.device_count()
    if _start.backend == "nccl" and count > gpus:
        raise ArgumentError(
            f"{count} workers are needed, and {have} run with a GPU each; {gpus} GPU(s) are here"
        )
    on_gpus = _start.devices[0].startswith("cuda:")
    more = [f"cuda:{i % gpus}" if on_gpus else _start.devices[0] for i in range(have, count)]
    _engine.grow(more)
    _start = _start._replace(devices=(*_start.devices, *more))


def last_start() -> Start:
    if _start is None:
        raise ArgumentError("no workers were ever started in this process")
    return _start


def shutdown() -> None:
    """End all workers; tensors that live on them cannot be used any more. Safe to call twice."""
    global _engine
    _take_away()
    if _engine is not None:
        _engine.stop()
        _engine = None


def _take_away() -> None:
    while _in_place:
        _in_place.pop().remove()


@atexit.register
def _leave() -> None:
    if _engine is None or _engine.process == os.getpid():
        shutdown()
        close_nursery()


def mesh_of(workers: tuple[int, ...], grid: tuple[int, ...]) -> Mesh:
    """The mesh of these workers; those that do not run yet are started."""
    running = engine()
    if in_process():
        return running.mesh((0,), (1,) * len(grid))
    grow_to(max(workers) + 1)
    return running.mesh(workers, grid)


def _in_fork() -> None:
    """A fork of the script: no workers, no signals; it may start workers of its own."""
    global _engine, _start
    _take_away()
    abandon_nursery()
    if _engine is not None:
        _engine.forked()
    _engine = _start = None
    for forget in in_fork:
        forget()


in_fork: list[Callable[[], None]] = []
os.register_at_fork(after_in_child=_in_fork)
