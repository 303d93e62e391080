"""Find the function that the user names in a file, or explain what to name instead."""

import difflib
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import typer
from torch import nn

MOST_NAMES = 8


def found(module: ModuleType, path: Path, name: str) -> tuple[Any, bool]:
    """(function, whether it is wrapped by a decorator that is not analysed); raises a usage error."""
    held = named(module, path, name)
    if isinstance(held, type):
        raise typer.BadParameter(_of_class(held, name))
    if isinstance(held, functools.partial):
        inner = getattr(held.func, "__qualname__", repr(held.func))
        raise typer.BadParameter(f"{name} is a functools.partial of {inner}: name that function instead")
    if not callable(held):
        raise typer.BadParameter(f"{name!r} in {path} is not a function but an object of {_kind(held)}")
    inner = inspect.unwrap(held, stop=lambda f: hasattr(f, "explain"))
    if not isinstance(inner, (FunctionType, MethodType)):
        _refuse_objects(inner, module, name)
    return inner, inner is not held or _around_jitted(inner)


def named(module: ModuleType, path: Path, name: str) -> Any:
    """Look up a dotted name; for a property return its getter, so that nothing is called."""
    held: Any = module
    for part in name.split("."):
        lying = inspect.getattr_static(held, part, None)
        if isinstance(lying, (property, functools.cached_property)):
            held = lying.fget if isinstance(lying, property) else lying.func
            continue
        try:
            held = getattr(held, part)
        except AttributeError:
            raise typer.BadParameter(f"{path} has no {name!r}{_instead(module, name)}") from None
    return held


def _instead(module: ModuleType, name: str) -> str:
    names = sorted(_functions(module, module.__name__), key=lambda full: "._" in f".{full}")  # private last
    owner = name[: name.rfind(".") + 1]  # compared without the class name first, which all its methods share
    own = {full.removeprefix(owner): full for full in names if full.startswith(owner)}
    close = [own[last] for last in difflib.get_close_matches(name.removeprefix(owner), own, n=3)]
    close = close or difflib.get_close_matches(name, names, n=3)
    if close:
        return f": did you mean {' or '.join(close)}?"
    if not names:
        return ", and no functions at all"
    more = ", ..." if len(names) > MOST_NAMES else ""
    return f": its functions are {', '.join(names[:MOST_NAMES])}{more}"


def _functions(held: Any, module: str, prefix: str = "") -> Iterator[str]:
    """Return the names of functions and methods defined in a module or class, without imported ones."""
    for name, value in vars(held).items():
        if getattr(value, "__module__", module) != module:
            continue
        if isinstance(value, type) and not prefix:
            yield from _functions(value, module, f"{name}.")
        elif _is_function(value) and (name == "__call__" or not name.startswith("__")):
            yield prefix + name


def _is_function(value: Any) -> bool:
    kinds = (FunctionType, staticmethod, classmethod, property, functools.cached_property)
    return isinstance(value, kinds) or (callable(value) and hasattr(value, "__wrapped__"))


def _generated(value: Any) -> bool:
    """Return whether a function has no source file, like the methods that `dataclass` adds."""
    code = getattr(inspect.unwrap(value), "__code__", None)
    return code is not None and code.co_filename.startswith("<")


def _of_class(kind: type, name: str) -> str:
    for base in kind.__mro__[:-1]:
        methods = [n for n, value in vars(base).items() if _is_function(value) and not _generated(value)]
        if methods:
            first = sorted(methods, key=lambda n: (n != "__call__", n.startswith("__")))[:3]
            examples = " or ".join(f"{name}.{method}" for method in first)
            return f"{name} is a class: name one of its methods, such as {examples}"
    return f"{name} is a class without methods of its own: name a function"


def _refuse_objects(held: Any, module: ModuleType, name: str) -> None:
    """Raise a usage error for an object that is called through a Python method; it names that method."""
    method = "forward" if isinstance(held, nn.Module) else "__call__"
    kind = type(held)
    if not isinstance(getattr(kind, method, None), FunctionType):
        return
    place = "" if kind.__module__ == module.__name__ else f" in the file of {kind.__module__}"
    raise typer.BadParameter(
        f"{name} is an object of {_kind(held)}: name the method that runs it, "
        f"{kind.__qualname__}.{method}{place}"
    )


def _kind(held: Any) -> str:
    return f"class {type(held).__qualname__}"


def _around_jitted(function: Any) -> bool:
    """Return whether `functools.wraps` copied the attributes of a jitted function to this wrapper."""
    jitted = getattr(function, "__xcs__", None)
    if jitted is None or function.explain != jitted.explain:  # `vmap` replaces explain
        return False
    return bool(jitted.function is not getattr(function, "__func__", function))
