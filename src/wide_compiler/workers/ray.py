"""Workers as Ray actors, on the machines of a cluster or on this one.

Ray chooses the machines and assigns GPUs, through a placement group with one bundle per worker. Messages use
this package's authenticated connections, and collectives use torch.distributed; nothing goes through Ray's
object store.
"""

from __future__ import annotations

import os
import platform
import socket
import threading
from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple

import torch.distributed as dist

from ..errors import needs, one_line
from .pool import START_SECONDS, ConnectedPool
from .worker_errors import ClusterError

_REACH_SECONDS = 5.0
_STORE_BYTES = 100 << 20  # object store of a local Ray; the workers do not use it
_KILL_SECONDS = 10.0


class Cluster(NamedTuple):
    """Options of a Ray cluster; see `signals.ray_workers`."""

    address: str | None = None
    cpus: float = 1
    gpus: float = 0
    strategy: str = "PACK"
    wait: float = 60.0


class WorkerActor:
    """The Ray actor whose process becomes a worker."""

    def versions(self) -> dict[str, str]:
        return versions()

    def serve(self, setup: dict) -> int:
        from .serve import serve

        return serve(setup)


class RayPool(ConnectedPool):
    """A pool of `size` workers, each in its own actor."""

    def __init__(self, size: int, cluster: Cluster) -> None:
        super().__init__(size)
        self._ray: Any = needs("ray", "ray")
        self._actors: list[Any] = []
        self._ends: list[Any] = []  # futures of `WorkerActor.serve`, one for each actor
        self._groups: list[Any] = []
        self._cluster = cluster
        connect(self._ray, cluster, size)
        self._host = _own_host(self._ray, cluster.address)
        listening = socket.create_server((self._host, 0), backlog=max(64, size))
        port = listening.getsockname()[1]
        self._store: dist.TCPStore | None = dist.TCPStore(
            self._host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        self._own = {
            "store": [self._host, port],
            "backend": "nccl" if cluster.gpus >= 1 else "gloo",
            "threads": max(1, int(cluster.cpus)),
            "device": "cuda:0" if cluster.gpus else "cpu",
        }
        self._add(size)

    def grow(self, devices: list[str], meet: Callable[[dict], None]) -> None:
        """Add workers; `meet(setup)` makes the running workers join the new process group."""
        self.size += len(devices)
        self._writing += [threading.Lock() for _ in devices]
        self._add(len(devices), lambda: meet({**self._own, "world": self.size}))

    def _add(self, count: int, present: Callable[[], None] = lambda: None) -> None:
        """Create actors on a new placement group and start them as workers."""
        try:
            group = self._reserve(count, self._cluster)
            self._groups.append(group)
            self._make_actors(count, group, self._cluster)
        except BaseException:
            self.kill()
            raise
        self._open(self._host, [self._own] * count, present)

    def _reserve(self, count: int, cluster: Cluster) -> Any:
        bundle = {"CPU": cluster.cpus, "GPU": cluster.gpus}
        bundle = {name: amount for name, amount in bundle.items() if amount}
        group = self._ray.util.placement_group([bundle] * count, strategy=cluster.strategy)
        if not group.wait(cluster.wait):
            self._ray.util.remove_placement_group(group)
            amounts = " and ".join(f"{amount:g} {name}" for name, amount in bundle.items())
            raise ClusterError(
                f"no room for {count} workers of {amounts} each ({cluster.strategy}) within "
                f"{cluster.wait:.0f} s: {_room(self._ray)}; ask for fewer workers, add machines, or wait "
                "longer with ray_workers(wait=...)"
            )
        return group

    def _make_actors(self, count: int, group: Any, cluster: Cluster) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self._ray.remote(WorkerActor)
        for number in range(count):
            bundle = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
            options = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, "max_restarts": 0}
            self._actors.append(actor.options(scheduling_strategy=bundle, **options).remote())
        asked = [a.versions.remote() for a in self._actors[-count:]]
        try:
            answers = self._ray.get(asked, timeout=START_SECONDS)
        except self._ray.exceptions.RayError as error:
            raise ClusterError(
                f"an actor did not start within {START_SECONDS:.0f} s, or could not import wide_compiler "
                f"on its machine: {_told(error)}"
            ) from None
        for rank, theirs in enumerate(answers, self.size - count):
            check_versions(rank, theirs)

    def _launch(self, setups: list[dict]) -> None:
        new = self._actors[-len(setups) :]
        self._ends += [a.serve.remote(s) for a, s in zip(new, setups, strict=True)]

    def _failed_start(self) -> tuple[int, str] | None:
        ended, _ = self._ray.wait(self._ends, timeout=0)
        return (self._ends.index(ended[0]), self._end_of(ended[0])) if ended else None

    def why_gone(self, worker: int) -> str:
        return f" ({self._end_of(self._ends[worker])})"

    def _end_of(self, end: Any) -> str:
        """Return how an actor ended, as text."""
        try:
            status = self._ray.get(end, timeout=1.0)
        except self._ray.exceptions.GetTimeoutError:
            return "its machine no longer answers"
        except self._ray.exceptions.RayError as error:
            return _told(error)
        return f"it could not reach this script at {self._host}" if status == 3 else f"status {status}"

    def stop(self) -> None:
        """Stop the workers."""
        self.kill()  # Ray expects an actor it kills to end; one that exits by itself is logged as an error

    def _kill_workers(self) -> None:
        """Kill the actors and wait for those on reachable machines; Ray detects the others by itself."""
        if not self._ray.is_initialized():
            return  # Ray was shut down, and its actors with it
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        self.wait_for_ends(_KILL_SECONDS)

    def _remove(self) -> None:
        for group in self._groups if self._ray.is_initialized() else ():
            self._ray.util.remove_placement_group(group)
        self._groups, self._store = [], None


def connect(ray: Any, cluster: Cluster, size: int) -> None:
    """Connect to the cluster unless this process is connected; without an address start a local Ray."""
    if ray.is_initialized():
        return
    address = cluster.address
    try:
        if address in (None, "auto", "local"):
            _connect_here(ray, cluster, size)
        else:
            assert address is not None
            _reach(address)
            ray.init(address=address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if isinstance(error, ClusterError):
            raise
        client = (address or "").startswith("ray://")
        hint = "; if the cluster asks for a token, set RAY_AUTH_MODE=token" if client else ""
        raise ClusterError(f"no Ray at {address or 'this machine'}: {one_line(error)}{hint}") from error


def _connect_here(ray: Any, cluster: Cluster, size: int) -> None:
    if cluster.address == "auto":
        ray.init(address="auto")
        return
    # As with local workers, there may be more workers than cores.
    cores = max(os.cpu_count() or 1, int(size * cluster.cpus + 1))
    own = {"num_cpus": cores, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    try:
        ray.init(address=cluster.address, **own)
    except ValueError:
        if cluster.address == "local":
            raise
        ray.init()  # an existing Ray ($RAY_ADDRESS or `ray start`) rejects these options


def _reach(address: str) -> None:
    """Raise ClusterError if nothing listens at the address; Ray itself would retry for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()
    except ValueError:
        raise ClusterError(
            f"address must be 'host:port', 'ray://host:port', 'auto' or 'local', got {address!r}"
        ) from None
    except OSError as error:
        raise ClusterError(
            f"no Ray at {address} ({error}; waited {_REACH_SECONDS:.0f} s at most); start one there with "
            "`ray start --head`, or check address and firewall"
        ) from None


def _own_host(ray: Any, address: str | None) -> str:
    """Return this machine's address on the route to the cluster, where workers can reach the script."""
    if address is None or not address.startswith("ray://"):
        address = ray.get_runtime_context().gcs_address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # UDP: sends nothing
        return probe.getsockname()[0]


def versions() -> dict[str, str]:
    """Return the versions that script and workers must share."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": metadata.version("torch").partition("+")[0],
        "wide_compiler": metadata.version("wide_compiler"),
    }


def check_versions(rank: int, theirs: dict[str, str]) -> None:
    for name, mine in versions().items():
        if theirs[name] != mine:
            raise ClusterError(
                f"worker {rank} runs {name} {theirs[name]}, the script {name} {mine}; install the same on "
                "all machines"
            )


def _room(ray: Any) -> str:
    """Return the cluster's total and free resources as text."""
    total, free = ray.cluster_resources(), ray.available_resources()
    names = [name for name in ("CPU", "GPU") if name in total]
    parts = [f"{name} {total[name]:g} in all, {free.get(name, 0):g} free" for name in names]
    machines = len([node for node in ray.nodes() if node["Alive"]])
    return f"the cluster has {', '.join(parts)}, on {machines} machine(s)"


def _told(error: Exception) -> str:
    """Return Ray's message on one line, without empty lines, at most 600 characters."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:600]
