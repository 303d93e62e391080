"""A router's name. It labels and computes nothing, so towers that differ in it alone are alike."""

import contextlib
from collections.abc import Iterator


class Label:
    """Equal to every other label, unless labels are being told apart.

    A forward may all the same read its router's name. `watch_labels` notices, and whoever builds a graph for
    several towers then builds it once more inside `labels_told_apart`.
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
    """While active, the list given collects the labels that are read."""
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
