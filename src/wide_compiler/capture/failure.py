"""Errors of capture; the member then runs as a loop, with the message as the reason."""


class CaptureFailed(Exception):
    """The member cannot be captured; the message says why in one line."""


class HasEffects(CaptureFailed):
    """The forward has Python side effects, for any input, that a graph would lose."""
