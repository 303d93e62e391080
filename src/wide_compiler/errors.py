"""Every error a user can meet. Each also is the built-in kind that fits, so `except ValueError` works."""


class WideError(Exception):
    """The common parent: `except WideError` catches whatever this library raises on purpose."""


class AlignmentError(WideError, ValueError):
    """The lanes are not of one architecture; the message names the first difference by path."""


class InputError(WideError, ValueError):
    """An input has the wrong structure, shape, dtype or device for the wide model."""


class SampleError(WideError, ValueError):
    """The member itself rejects the sample; the member's own error is the cause."""


class UnsupportedError(WideError, NotImplementedError):
    """Something would have to run per lane while `fallback_passthrough=False` forbids that."""


class ValidationError(WideError, AssertionError):
    """The wide model and the loop over its members disagree beyond the tolerance."""


class CheckpointError(WideError, ValueError):
    """A checkpoint is missing, cannot be read, or does not fit; the message names the first difference."""


class SaveError(WideError, OSError):
    """A checkpoint could not be written (a full disk, no permission); those before it are intact."""


def one_line(error: Exception) -> str:
    """Type and first line of an error's message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
