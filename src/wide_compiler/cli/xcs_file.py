"""Import a user's file for `wide_compiler xcs`, as part of its package if it has one."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import typer

MACHINERY = (Path(__file__), Path(importlib.__file__))  # frames of these files are left out of error messages


def imported(path: Path) -> ModuleType:
    """Import a file; any failure is raised as a usage error of one line."""
    if importlib.util.spec_from_file_location(path.stem, path) is None:
        raise typer.BadParameter(f"{path} is not a Python file")
    full = path.parent.resolve() / path.name
    try:
        return _in_package(full) or _alone(full)
    except KeyboardInterrupt:
        raise
    except SystemExit as end:
        raise typer.BadParameter(
            f"importing {path} ended the program (exit status {_status(end)}); put what runs it under "
            f"`if __name__ == '__main__':`"
        ) from None
    except BaseException as error:  # some, like that of pytest.skip, are not an Exception
        raise typer.BadParameter(_failure(path, error)) from None


def _in_package(path: Path) -> ModuleType | None:
    """Import the file by its dotted name if it is in a package; None if another module has that name."""
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if folder == path.parent or any("." in part for part in parts):
        return None
    first = getattr(sys.modules.get(parts[0]), "__file__", None)
    if parts[0] in sys.modules and (first is None or Path(first).resolve().parent != folder / parts[0]):
        return None
    sys.path.insert(0, str(folder))
    sys.path.append(str(path.parent))  # a script finds the files beside it
    made = importlib.import_module(".".join(parts))
    return made if _same(Path(getattr(made, "__file__", None) or ""), path) else None


def _alone(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if sys.modules.get(path.stem) is module:
            del sys.modules[path.stem]
        raise
    return module


def _status(end: SystemExit) -> object:
    if isinstance(end.code, str):
        return f"1: {end.code}"
    return end.code or 0


def _failure(path: Path, error: BaseException) -> str:
    """Return the error message: line in the file, the place outside of it if it failed there, the error."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(Path(frame.filename), frame.lineno) for frame in frames]
    what = next(iter(str(error).splitlines()), "")
    if isinstance(error, SyntaxError):
        what = error.msg
        places += [(Path(error.filename), error.lineno)] if error.filename else []
    lines = [line for file, line in places if _same(file, path)]
    where = f" at line {lines[-1]}" if lines else ""
    others = [place for place in places if place[0] not in MACHINERY and "<frozen" not in str(place[0])]
    if others and not _same(others[-1][0], path):
        where += " (in {}, line {})".format(*others[-1])
    return f"importing {path} failed{where}: {type(error).__name__}" + (f": {what}" if what else "")


def _same(file: Path, path: Path) -> bool:
    return file.is_file() and file.samefile(path)
