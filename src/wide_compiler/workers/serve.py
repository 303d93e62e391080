"""A worker process: connect, prove the secret, then run instructions until the script leaves."""

import logging
import os
import queue
import threading
import time
import traceback
from collections import deque
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from typing import Any

import torch
import torch.distributed as dist

from .seen import take_spans, take_stats
from .table import Poisoned
from .wire import NoAnswer, dump, interface_of, load, own_address, tune
from .worker import Worker

# Between heartbeats and between acknowledgements of up to so many workers; with more of them each says less.
_BEAT_SECONDS = 0.5
_ACK_SECONDS = 0.02
_FEW_WORKERS = 32
_ACK_INSTRUCTIONS = 1024


class Service:
    """The loop of one worker. Three threads: one reads, one sends heartbeats, the main one works."""

    def __init__(self, connection: Connection, setup: dict) -> None:
        self.connection = connection
        self.setup = setup
        self.lock = threading.Lock()
        self.batches: queue.SimpleQueue[list[tuple]] = queue.SimpleQueue()
        self.verdicts: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.current = 0
        self.said = 0  # what the script knows to be done
        self.said_at = 0.0
        self.ack_seconds = _ACK_SECONDS
        self.spans: deque[tuple[float, float, float]] | None = None  # while the script is being watched

    def send(self, *message: Any) -> None:
        with self.lock:
            self.connection.send_bytes(dump(message))

    def read(self) -> None:
        """The script is gone once its end is closed: leave at once, even from within a collective."""
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
                spans = self.spans  # the reading thread may take it away at any moment
                if spans is not None:
                    self.send("seen", take_stats(worker), take_spans(spans))
        except OSError:
            os._exit(2)

    def reply(self, request: int, payload: Any) -> None:
        """An answer; what came before it is done."""
        try:
            data = dump(("result", request, payload, self.current))
        except Exception as error:  # pickle raises what the payload's own methods raise
            why = f"a {type(payload).__name__} cannot be sent to the script: {type(error).__name__}: {error}"
            data = dump(("result", request, NoAnswer(why), self.current))
        with self.lock:
            self.connection.send_bytes(data)

    def work(self, worker: Worker) -> None:
        while True:
            batch = self.next_batch()
            if self.spans is None:
                for instruction in batch:
                    self.current = instruction[1]
                    self.run_one(worker, instruction)
            else:
                self.run_timed(worker, batch, self.spans)
            waited = time.monotonic() - self.said_at
            if waited > self.ack_seconds or self.current - self.said > _ACK_INSTRUCTIONS:
                self.acknowledge()

    def run_timed(self, worker: Worker, batch: list[tuple], spans: deque) -> None:
        for instruction in batch:
            self.current = seq = instruction[1]
            start = time.time()
            self.run_one(worker, instruction)
            spans.append((seq, start, time.time()))

    def next_batch(self) -> list[tuple]:
        """Waits. Each word to the script takes a little of its time: while work keeps coming it hears now and
        then of what is done, and once more when the work has stopped."""
        if self.said != self.current:
            try:
                return self.batches.get(timeout=_ACK_SECONDS)
            except queue.Empty:
                self.acknowledge()
        return self.batches.get()

    def interval_factor(self) -> float:
        """How many times as long the intervals are as with a few workers."""
        workers = dist.get_world_size() if dist.is_initialized() else 1
        return max(1.0, workers / _FEW_WORKERS)

    def acknowledge(self) -> None:
        self.said, self.said_at = self.current, time.monotonic()
        self.ack_seconds = _ACK_SECONDS * self.interval_factor()
        self.send("ack", self.current)

    def run_one(self, worker: Worker, instruction: tuple) -> None:
        """After a failure nothing more runs here until the script has heard of every other worker."""
        try:
            worker.execute(instruction)
        except Poisoned:
            worker.poison(instruction)
        except Exception as error:  # an op may raise anything; all of it goes to the script
            self.send("failed", instruction[1], type(error).__name__, str(error), traceback.format_exc())
            self.verdicts.get()
            worker.poison(instruction)


def serve(setup: dict) -> int:
    """Run one worker to its end.

    setup: `rank`, `world`, `address` and `secret` (of the script), `device`, `backend`, `threads`, and
    `store`, where the workers find each other: a file, or host and port of a TCPStore.
    """
    try:
        connection = Client(tuple(setup["address"]), authkey=bytes.fromhex(setup["secret"]))
    except (OSError, EOFError, AuthenticationError):
        return 3  # the script is gone, or is not the one that started this
    tune(connection)
    torch.set_num_threads(setup["threads"])
    torch.set_grad_enabled(False)
    # How DTensor finds its way over gloo is nothing a user can change.
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    service = Service(connection, setup)
    service.send("hello", setup["rank"], os.getpid())
    threading.Thread(target=service.read, daemon=True).start()
    device = torch.device(setup["device"])
    worker = Worker(setup["rank"], device, service.reply, meet)
    threading.Thread(target=service.beat, args=(worker,), daemon=True).start()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _use_interface(interface_of(own_address(connection)))
    meet(setup["rank"], setup)
    service.send("ready")
    service.work(worker)
    return 0


def meet(rank: int, setup: dict) -> None:
    """Find the other workers; those of an earlier meeting are left."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if setup["world"] > 1:
        dist.init_process_group(
            setup["backend"],
            store=_find_store(setup),
            rank=rank,
            world_size=setup["world"],
            timeout=timedelta(hours=12),  # a peer that hangs is found by the script, not by a collective
        )


def _use_interface(name: str | None) -> None:
    """Collectives go the way that the script's messages go, unless the environment says otherwise."""
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        if name != "lo":  # within one machine NCCL needs no network
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _find_store(setup: dict) -> dist.Store:
    where = setup["store"]
    if isinstance(where, str):
        return dist.FileStore(where, setup["world"])
    host, port = where
    # One store for every meeting of the workers, so each has names of its own there.
    return dist.PrefixStore(f"of_{setup['world']}", dist.TCPStore(host, port, is_master=False))
