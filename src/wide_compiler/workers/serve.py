"""Main loop of a worker process: connect, authenticate, then run instructions until the script ends."""

import logging
import os
import queue
import threading
import time
from array import array
from collections import deque
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .wire import NoAnswer, dump, interface_of, load, own_address, tune
from .worker import Worker

# Intervals of heartbeats and of acknowledgements with up to _FEW_WORKERS workers; longer with more.
_BEAT_SECONDS = 0.5
_ACK_SECONDS = 0.02
_FEW_WORKERS = 32
_ACK_INSTRUCTIONS = 1024


class Service:
    """The loop of one worker: a thread that reads, one that sends heartbeats, and the main thread."""

    def __init__(self, connection: Connection, setup: dict) -> None:
        self.connection = connection
        self.setup = setup
        self.lock = threading.Lock()
        self.batches: queue.SimpleQueue[list[tuple]] = queue.SimpleQueue()
        self.verdicts: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.current = 0
        self.said = 0  # last sequence number acknowledged
        self.said_at = 0.0
        self.ack_seconds = _ACK_SECONDS
        self.spans: deque[tuple[float, float, float]] | None = None  # set while the script is observed

    def send(self, *message: Any) -> None:
        with self.lock:
            self.connection.send_bytes(dump(message))

    def read(self) -> None:
        """Read messages; exit at once when the script closes its end, even inside a collective."""
        try:
            while True:
                kind, content = load(self.connection.recv_bytes())
                if kind == "leave":
                    os._exit(0)
                if kind == "watch":
                    self.spans = deque() if content else None
                    continue
                (self.batches if kind == "batch" else self.verdicts).put(content)
        except (EOFError, OSError):
            os._exit(2)

    def beat(self, worker: Worker) -> None:
        stop = threading.Event()
        try:
            while not stop.wait(_BEAT_SECONDS * self.interval_factor()):
                self.send("beat", self.current)
                spans = self.spans  # the reader thread may set it to None at any time
                if spans is not None:
                    self.send("seen", take_stats(worker), take_spans(spans))
        except OSError:
            os._exit(2)

    def reply(self, request: int, payload: Any) -> None:
        """Send a reply; it also acknowledges all instructions before it."""
        try:
            data = dump(("result", request, payload, self.current))
        except Exception as error:  # pickle raises whatever the payload's methods raise
            why = f"a {type(payload).__name__} cannot be sent to the script: {type(error).__name__}: {error}"
            data = dump(("result", request, NoAnswer(why), self.current))
        with self.lock:
            self.connection.send_bytes(data)

    def work(self, worker: Worker) -> None:
        while True:
            batch, spans = self.next_batch(), self.spans
            for instruction in batch:
                self.current = seq = instruction[1]
                start = time.time()
                worker.run(instruction, self.report)
                if spans is not None:
                    spans.append((seq, start, time.time()))
            waited = time.monotonic() - self.said_at
            if waited > self.ack_seconds or self.current - self.said > _ACK_INSTRUCTIONS:
                self.acknowledge()

    def next_batch(self) -> list[tuple]:
        """Return the next batch, waiting for it.

        Every message costs the script some time, so acknowledgements are sent only now and then while work
        keeps coming, and once more when it stops.
        """
        if self.said != self.current:
            try:
                return self.batches.get(timeout=_ACK_SECONDS)
            except queue.Empty:
                self.acknowledge()
        return self.batches.get()

    def interval_factor(self) -> float:
        """Return the factor by which intervals grow with more than _FEW_WORKERS workers."""
        workers = dist.get_world_size() if dist.is_initialized() else 1
        return max(1.0, workers / _FEW_WORKERS)

    def acknowledge(self) -> None:
        self.said, self.said_at = self.current, time.monotonic()
        self.ack_seconds = _ACK_SECONDS * self.interval_factor()
        self.send("ack", self.current)

    def report(self, *failure: Any) -> None:
        """Report a failure, and wait until the script has heard from every other worker."""
        self.send("failed", *failure)
        self.verdicts.get()


def take_spans(spans: deque[tuple[float, float, float]]) -> bytes:
    """Remove the finished instructions from `spans`; returns (number, start, end) each, as packed doubles."""
    taken = array("d")
    for _ in range(len(spans)):  # fixed count: spans added meanwhile are taken next time
        taken.extend(spans.popleft())
    return taken.tobytes()


def take_stats(worker: Worker) -> dict[str, Any]:
    """Return current counters and sizes; reads a running worker without stopping it."""
    if worker.device.type == "cuda":
        memory = torch.cuda.memory_allocated(worker.device)
    else:  # resident
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "ops": sum(list(worker.instructions.values())),
        "bytes_sent": worker.bytes_sent,
        "live_tensors": len(worker.values),
        "memory": memory,
        "device": str(worker.device),
    }


def serve(setup: dict) -> int:
    """Run one worker until the script ends; returns an exit status.

    setup: `rank`, `world`, `address` and `secret` (of the script), `device`, `backend`, `threads`, and
    `store`, the rendezvous of the workers: a file, or host and port of a TCPStore.
    """
    try:
        connection = Client(tuple(setup["address"]), authkey=bytes.fromhex(setup["secret"]))
    except (OSError, EOFError, AuthenticationError):
        return 3  # the script is gone, or is not the one that started this worker
    tune(connection)
    torch.set_num_threads(setup["threads"])
    torch.set_grad_enabled(False)
    # Silence DTensor's notes about gloo fallbacks, which users cannot act on.
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    service = Service(connection, setup)
    service.send("hello", setup["rank"], os.getpid())
    threading.Thread(target=service.read, daemon=True).start()
    device = torch.device(setup["device"])
    worker = Worker(setup["rank"], device, service.reply, meet)
    threading.Thread(target=service.beat, args=(worker,), daemon=True).start()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    name = interface_of(own_address(connection))
    if name is not None:  # the script's network interface for collectives, unless the environment sets one
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        if name != "lo":  # NCCL needs no network within one machine
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
    meet(setup["rank"], setup)
    service.send("ready")
    service.work(worker)
    return 0


def meet(rank: int, setup: dict) -> None:
    """Join the process group of all workers; leaves the previous one first."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if setup["world"] > 1:
        dist.init_process_group(
            setup["backend"],
            store=_find_store(setup),
            rank=rank,
            world_size=setup["world"],
            timeout=timedelta(hours=12),  # the script detects a hung peer, not the collective
        )


def _find_store(setup: dict) -> dist.Store:
    where = setup["store"]
    if isinstance(where, str):
        return dist.FileStore(where, setup["world"])
    host, port = where
    # One store serves every process group, so each uses its own key prefix.
    return dist.PrefixStore(f"of_{setup['world']}", dist.TCPStore(host, port, is_master=False))
