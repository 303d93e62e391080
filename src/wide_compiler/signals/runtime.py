"""The one engine of this process: started on first use, replaced by `restart()`."""

from __future__ import annotations

import atexit
import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ..config import variable
from ..errors import ArgumentError
from ..observe import instruction_log
from ..workers.engine import Engine
from ..workers.inprocess import InProcessPool
from ..workers.local import LocalPool, abandon_fork_server, close_fork_server
from ..workers.ray import Cluster, RayPool
from ..workers.stream import Mesh, Pool
from . import signal_config


class StartOptions(NamedTuple):
    """How workers were started, so that `restart()` can start the same again.

    backend: of torch.distributed; empty on a cluster, where it follows from each worker's device.
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


class Listener:
    """A function that is called if one is set; `with listener(hear): ...` sets it."""

    hear: Any = None

    @contextlib.contextmanager
    def __call__(self, hear: Any) -> Iterator[None]:
        before, self.hear = self.hear, hear
        try:
            yield
        finally:
            self.hear = before


_engine: Engine | None = None
# Functions called when workers start; each returns an object whose `remove()` is called at shutdown, or None.
# A hook on all modules, for example, must not cost scripts without signals anything.
while_running: list[Callable[[], Any]] = []
_in_place: list[Any] = []
_start: StartOptions | None = None


def in_process() -> bool:
    """Return whether `WIDE_COMPILER_WORKERS=0`: one worker inside the script's process."""
    return os.environ.get(variable("WORKERS")) == "0"


def _environment() -> tuple[int | None, Cluster | None]:
    """Parse `WIDE_COMPILER_WORKERS`: the number of workers, or the Ray cluster."""
    given = os.environ.get(variable("WORKERS"), "")
    if given == "ray" or given.startswith("ray://"):
        return None, Cluster(None if given == "ray" else given)
    if given and not given.isdecimal():
        raise ArgumentError(
            f"{variable('WORKERS')} must be a number, 'ray' or 'ray://host:port', got {given!r}"
        )
    return int(given) if given else None, None


def engine() -> Engine:
    """Return the running engine; starts as many CPU workers as the configured signals need."""
    if _engine is None:
        cpu_workers(_environment()[0] or signal_config.highest_worker() + 1)
    assert _engine is not None
    return _engine


def running() -> Engine | None:
    return _engine


def cpu_workers(n: int) -> None:
    """Start `n` local worker processes, or actors with `WIDE_COMPILER_WORKERS=ray`.

    If fewer are running, more are added; otherwise this does nothing.
    """
    _check_count(n)
    cluster = _environment()[1]
    start_workers(StartOptions(("cpu",) * n, "" if cluster else "gloo", cluster))


def gpu_workers(n: int) -> None:
    """Start `n` local workers, one per GPU; with fewer GPUs they share, with none they use the CPU.

    With `WIDE_COMPILER_WORKERS=ray`, Ray assigns one GPU to each.
    """
    _check_count(n)
    cluster = _environment()[1]
    if cluster is not None:
        start_workers(StartOptions(("cuda",) * n, "", cluster._replace(gpus=1)))
        return
    gpus = torch.cuda.device_count()
    if gpus == 0:
        warnings.warn(f"gpu_workers({n}): no GPU here; the workers run on the CPU", stacklevel=2)
        start_workers(StartOptions(("cpu",) * n, "gloo"))
        return
    if gpus < n:
        warnings.warn(
            f"gpu_workers({n}): {gpus} GPU(s) here; workers share them and talk through host memory (gloo)",
            stacklevel=2,
        )
    devices = tuple(f"cuda:{i % gpus}" for i in range(n))
    start_workers(StartOptions(devices, "nccl" if n <= gpus else "gloo"))


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

    Args:
        n: number of workers.
        address: `host:port` of a cluster, `ray://host:port` of its client server, "auto" for a Ray that runs
            on this machine, "local" for a new one; None as in `ray.init()`: $RAY_ADDRESS, else a Ray started
            here by `ray start`, else a new one.
        cpus, gpus: resources reserved for each worker; with a whole GPU each they use NCCL.
        strategy: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD, as for Ray's placement groups.
        wait: seconds to wait for the cluster to have room for all of them.
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
    start_workers(StartOptions((device,) * n, "", Cluster(address, cpus, gpus, strategy, wait)))


def _check_count(n: int) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ArgumentError(f"the number of workers must be an int of at least 1, got {n!r}")


def start_workers(start: StartOptions) -> None:
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
    _take_away()  # hooks of workers that died
    _in_place.extend(placed for put in while_running if (placed := put()) is not None)
    _engine.mesh((0,))


def grow_to(count: int) -> None:
    """Add workers of the running kind until there are `count`; existing values stay."""
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


def last_start() -> StartOptions:
    if _start is None:
        raise ArgumentError(
            "no workers were started in this process yet; use a signal, or call cpu_workers(n), first"
        )
    return _start


def shutdown() -> None:
    """Stop all workers; tensors on them cannot be used any more. Safe to call twice."""
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
        close_fork_server()


def mesh_of(workers: tuple[int, ...], grid: tuple[int, ...]) -> Mesh:
    """Return the mesh of these workers, starting those that do not run yet."""
    running = engine()
    if in_process():
        return running.mesh((0,), (1,) * len(grid))
    grow_to(max(workers) + 1)
    return running.mesh(workers, grid)


def _in_fork() -> None:
    """Reset the state in a fork of the script: no workers and no signals; it may start its own workers."""
    global _engine, _start
    _take_away()
    abandon_fork_server()
    if _engine is not None:
        _engine.forked()
    _engine = _start = None
    for forget in in_fork:
        forget()


in_fork: list[Callable[[], None]] = []
os.register_at_fork(after_in_child=_in_fork)
