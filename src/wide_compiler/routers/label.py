"""A router's name, which is ignored when towers are compared, because it does not affect the results."""

import contextlib
from collections.abc import Iterator


class Label:
    """A name that equals every other, except inside `labels_told_apart`.

    A forward may still read its router's name. `watch_labels` detects that, and the group then builds its
    graph again inside `labels_told_apart`.
    """

    __slots__ = ("text",)
    __hash__ = None  # type: ignore[assignment]
    told_apart = False
    reads: list[str] | None = None

    def __init__(self, text: str):
        self.text = text

    def read(self) -> str:
        if Label.reads is not None:
            Label.reads.append(self.text)
        return self.text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Label):
            return False
        return self.text == other.text or not Label.told_apart


@contextlib.contextmanager
def watch_labels() -> Iterator[list[str]]:
    """Collect the labels that are read in this context in a list."""
    before, Label.reads = Label.reads, []
    try:
        yield Label.reads
    finally:
        Label.reads = before


@contextlib.contextmanager
def labels_told_apart() -> Iterator[None]:
    before, Label.told_apart = Label.told_apart, True
    try:
        yield
    finally:
        Label.told_apart = before
