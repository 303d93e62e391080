"""The errors of the library. Each also derives from the matching built-in, such as `ValueError`."""

import importlib
import types


class WideError(Exception):
    """Base class of the library's errors."""


class AlignmentError(WideError, ValueError):
    """The lanes differ in architecture; the message names the first difference by path."""


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
    """The member raises on the sample; its error is the cause."""


class SaveError(WideError, OSError):
    """A checkpoint could not be written (full disk, no permission); earlier checkpoints are intact."""


class UnknownNameError(WideError, KeyError):
    """Nothing is registered under this name."""


class UnsupportedError(WideError, NotImplementedError):
    """The library cannot run this, or `fallback_passthrough=False` forbids the fallback loop."""


class UsageError(WideError, RuntimeError):
    """This cannot be done in the current state; the message says what to do first."""


class ValidationError(WideError, AssertionError):
    """The wide model and the loop over its members disagree beyond the tolerance."""


class WrongTypeError(WideError, TypeError):
    """An argument, or the return value of a user's function, has the wrong type."""


def one_line(error: BaseException) -> str:
    """Return type and first line of an error's message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def needs(package: str, extra: str) -> types.ModuleType:
    """Import `package`; raise `MissingExtraError` with the extra that installs it if it is missing."""
    top = package.partition(".")[0]
    try:
        importlib.import_module(top)
        return importlib.import_module(package)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != top:
            raise  # the package is installed, but one of its dependencies is missing
        raise MissingExtraError(
            f"{top} is not installed: pip install 'wide_compiler[{extra}]'", name=top
        ) from missing
