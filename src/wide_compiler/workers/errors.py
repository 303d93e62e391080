"""What can go wrong with workers, each as the built-in kind that fits."""

from ..errors import WideError


class WorkerDied(WideError, RuntimeError):
    """A worker process is gone, or was stopped since it could no longer be trusted.

    Attributes: `worker`, the id of the worker that failed first.
    """

    def __init__(self, message: str, worker: int) -> None:
        super().__init__(message)
        self.worker = worker

    def __reduce__(self) -> tuple:
        return type(self), (self.args[0], self.worker)


class WorkerHung(WorkerDied):
    """A worker no longer answers, or one instruction takes longer than the hang limit."""


class WorkerFailed(WideError, RuntimeError):
    """An op failed alike on every worker that ran it: an error of the program, not of the workers."""


class ClusterError(WideError, RuntimeError):
    """A cluster cannot be reached, has no room for the workers, or runs other versions than the script."""


class NoWorkers(WideError, RuntimeError):
    """A tensor outlived its workers: they were shut down, and nothing holds its values any more."""
