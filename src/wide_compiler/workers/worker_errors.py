"""Exceptions raised for workers; each also derives from a fitting built-in exception."""

from ..errors import WideError


class WorkerDied(WideError, RuntimeError):
    """A worker process ended, or was stopped because its state may be inconsistent.

    Attributes:
        worker: id of the worker that failed first.
    """

    def __init__(self, message: str, worker: int) -> None:
        super().__init__(message)
        self.worker = worker

    def __reduce__(self) -> tuple:
        return type(self), (self.args[0], self.worker)


class WorkerHung(WorkerDied):
    """A worker sends no heartbeat, or one instruction takes longer than the hang limit."""


class WorkerFailed(WideError, RuntimeError):
    """An op failed in the same way on every worker that ran it: an error of the program, not of a worker."""


class ClusterError(WideError, RuntimeError):
    """A cluster cannot be reached, lacks resources for the workers, or has other versions than the script."""


class NoWorkers(WideError, RuntimeError):
    """A tensor's workers were shut down, so its values no longer exist."""
