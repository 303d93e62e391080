"""A lock around captures, because torch.export patches `nn.Module.__call__` and global flags."""

import threading

CAPTURE = threading.RLock()


class OwnLock:
    """A lock of one object: copies and unpickled objects get a new lock."""

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
