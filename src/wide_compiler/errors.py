"""Every error a user can meet. Each also is the built-in kind that fits, so `except ValueError` works."""

import importlib
import types


class WideError(Exception):
    """The common parent: `except WideError` catches whatever this library raises on purpose."""


class AlignmentError(WideError, ValueError):
    """The lanes are not of one architecture; the message names the first difference by path."""


class ArgumentError(WideError, ValueError):
    """An argument, option or setting has a value that cannot be used."""


class CheckpointError(WideError, ValueError):
    """A checkpoint is missing, cannot be read, or does not fit; the message names the first difference."""


class InputError(WideError, ValueError):
    """An input has the wrong structure, shape, dtype or device for the wide model."""


class LaneIndexError(WideError, IndexError):
    """A lane or a row of a table is out of range."""


class MissingExtraError(WideError, ModuleNotFoundError):
    """An optional package is not installed; the message names the extra that installs it."""


class MissingFileError(WideError, FileNotFoundError):
    """There is no such file."""


class SampleError(WideError, ValueError):
    """The member itself rejects the sample; the member's own error is the cause."""


class SaveError(WideError, OSError):
    """A checkpoint could not be written (a full disk, no permission); those before it are intact."""


class UnknownNameError(WideError, KeyError):
    """Nothing is registered under this name."""


class UnsupportedError(WideError, NotImplementedError):
    """There is no way to run this: the library has none, or `fallback_passthrough=False` forbids the loop."""


class UsageError(WideError, RuntimeError):
    """This cannot be done now; the message says what has to be done first."""


class ValidationError(WideError, AssertionError):
    """The wide model and the loop over its members disagree beyond the tolerance."""


class WrongTypeError(WideError, TypeError):
    """An argument, or what a function of the user's returned, is of the wrong type."""


def one_line(error: Exception) -> str:
    """Type and first line of an error's message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def needs(package: str, extra: str) -> types.ModuleType:
    """The module `package`, or a `MissingExtraError` that names the extra that installs it."""
    top = package.partition(".")[0]
    try:
        importlib.import_module(top)
        return importlib.import_module(package)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != top:
            raise  # the package is there, but something that it needs is not
        raise MissingExtraError(
            f"{top} is not installed: pip install 'wide_compiler[{extra}]'", name=top
        ) from missing
