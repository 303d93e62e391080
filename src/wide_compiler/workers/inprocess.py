"""`GT_WORKERS=0`: one worker within the script's own process. The same instructions, no processes, no
network."""

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .table import Poisoned
from .travelling import follow, settings
from .wire import load
from .worker import Worker


class InProcessPool:
    """A pool of one worker that runs each batch at once."""

    payloads: str | None = None
    size = 1

    def __init__(self) -> None:
        self.on_message: Callable[[int, tuple], None] = lambda worker, message: None
        self.on_gone: Callable[[int], None] = lambda worker: None
        self.on_tick: Callable[[], None] = lambda: None
        self.on_broken: Callable[[int, str], None] = lambda worker, why: None
        self.pids: list[int] = []
        self._worker = Worker(0, torch.device("cpu"), self._reply)
        self._current = 0
        self._settings = settings()

    def start(self) -> None:
        """Nothing to start."""

    def _reply(self, request: int, payload: Any) -> None:
        self.on_message(0, ("result", request, payload, self._current))

    def post(self, worker: int, data: bytes) -> None:
        kind, batch = load(data)
        if kind != "batch":
            return
        state, script = torch.random.get_rng_state(), settings()
        follow(self._settings)  # the script may have changed them since it recorded these instructions
        # The script may be inside a context or an autograd function; the worker's ops are not its own.
        with torch.no_grad(), _disable_current_modes():
            for instruction in batch:
                self._run(instruction)
        self._settings = settings()
        follow(script)
        torch.random.set_rng_state(state)
        self.on_message(0, ("ack", batch[-1][1]))

    def _run(self, instruction: tuple) -> None:
        self._current = instruction[1]
        try:
            self._worker.execute(instruction)
        except Poisoned:
            self._worker.poison(instruction)
        except Exception as error:  # an op may raise anything; all of it goes to the engine
            self.on_message(
                0, ("failed", instruction[1], type(error).__name__, str(error), traceback.format_exc())
            )
            self._worker.poison(instruction)

    def watched(self) -> bool:
        return True

    def grow(self, devices: list[str], meet: Callable[[dict], None]) -> None:
        """One worker stands for any number."""

    def abandon(self) -> None:
        """A fork has values of its own."""

    def why_gone(self, worker: int) -> str:
        return ""

    def stop(self) -> None:
        self._worker.values.clear()

    def kill(self) -> None:
        self.stop()
