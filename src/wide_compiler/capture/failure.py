"""The one exception that says: this member runs as a loop, and why."""


class CaptureFailed(Exception):
    """This member cannot be captured; the message says why in one line."""


class HasEffects(CaptureFailed):
    """Its forward does something in Python that a graph would not, at whatever input."""
