"""One capture at a time: torch.export swaps `nn.Module.__call__` and its own flags while it works."""

import threading

CAPTURE = threading.RLock()


class OwnLock:
    """A lock that belongs to one object: a copy of the object, or one that is unpickled, gets a new one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __deepcopy__(self, memo: object) -> "OwnLock":
        return OwnLock()

    def __reduce__(self) -> tuple[type, tuple]:
        return OwnLock, ()
