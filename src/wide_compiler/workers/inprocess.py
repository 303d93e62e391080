"""`WIDE_COMPILER_WORKERS=0`: one worker inside the script's process, with the same instructions and no
network.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .script_state import follow, settings
from .stream import Pool
from .wire import load
from .worker import Worker


class InProcessPool(Pool):
    """A pool of one worker that runs each batch immediately and stands in for any number.

    A fork of the script has its own copy of the values, so it need not abandon them.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self._worker = Worker(0, torch.device("cpu"), self._reply)
        self._current = 0
        self._settings = settings()

    def _reply(self, request: int, payload: Any) -> None:
        self.on_message(0, ("result", request, payload, self._current))

    def post(self, worker: int, data: bytes) -> None:
        kind, batch = load(data)
        if kind != "batch":
            return
        state, script = torch.random.get_rng_state(), settings()
        follow(self._settings)  # the script may have changed them since it recorded these instructions
        # The script may be inside a dispatch mode or an autograd function, which must not apply to the
        # worker's ops.
        with torch.no_grad(), _disable_current_modes():
            for instruction in batch:
                self._current = instruction[1]
                self._worker.run(instruction, lambda *failure: self.on_message(0, ("failed", *failure)))
        self._settings = settings()
        follow(script)
        torch.random.set_rng_state(state)
        self.on_message(0, ("ack", batch[-1][1]))

    def stop(self) -> None:
        self._worker.values.clear()
