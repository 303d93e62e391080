"""Calls that may overlap, each at most once: a whitelist of those that wait for something they only read, and
those of functions that the user has marked as independent."""

import ast
import os
import pathlib
import time
import types
import urllib.request
from typing import TYPE_CHECKING, Any

from ..independent import is_independent
from .kinds import CHANGEABLE, ITERATORS, Opaque, Plain
from .unpatched import A_PATH, FILES, JSON, MADE_PATHS, WEB, Unpatched, client_of
from .unpatched import PATHS as PATHS
from .values import Value, list_of, opaque

if TYPE_CHECKING:
    from .analysis import Analyzer


class ReadFile:
    """Stands for a file opened for reading, or the answer to a GET."""


FUNCTIONS: dict[Any, Any] = {
    time.sleep: type(None),
    os.path.exists: bool,
    os.path.isfile: bool,
    os.path.isdir: bool,
    os.path.getsize: int,
    os.path.getmtime: float,
    os.listdir: lambda: list_of(Value(str)),
    urllib.request.urlopen: ReadFile,
    open: ReadFile,
}
READ_MODES = ("r", "rb", "rt", "br", "tr")
METHODS = {
    "read": Plain,
    "readline": Plain,
    "readlines": lambda: list_of(Value(Plain)),
    "close": type(None),
    "json": Opaque,
    "raise_for_status": type(None),
}
RESPONSE_ATTRIBUTES = {
    "text": str,
    "content": bytes,
    "status": int,
    "status_code": int,
    "ok": bool,
    "headers": Opaque,
}
PATH_MAKERS = (pathlib.Path, A_PATH)
PATH_ATTRIBUTES = {"name": str, "stem": str, "suffix": str, "parent": A_PATH}
PATH_METHODS = {
    "read_text": str,
    "read_bytes": bytes,
    "open": ReadFile,
    "exists": bool,
    "is_file": bool,
    "is_dir": bool,
}
# Classes whose calls stay in order, and why, by the modules they are defined in.
IN_ORDER = {
    ("requests.sessions", "Session"): "a requests.Session sends cookies of one answer with the next request",
    ("httpx", "Client"): "an httpx.Client sends cookies of one answer with the next request",
    ("sqlite3", "Connection"): "a connection of sqlite3 belongs to the thread that has opened it",
    ("sqlite3", "Cursor"): "a cursor of sqlite3 belongs to the thread that has opened its connection",
}
MARK_IT = "; mark a function that may overlap nevertheless with @xcs.independent"


def waits(a: "Analyzer", found: Any, what: str, node: ast.AST) -> bool:
    """Is this function whitelisted? Then the library behind it must be what it was."""
    client = None if found in FUNCTIONS else client_of(found)
    if client is not None:
        unpatched(a, client, what, node)
    elif found is urllib.request.urlopen:
        unpatched(a, WEB, what, node)
    elif found in FUNCTIONS and not isinstance(found, types.BuiltinFunctionType):  # of Python itself
        unpatched(a, FILES, what, node)
    return client is not None or found in FUNCTIONS


def path_of(a: "Analyzer", args: list[Value], node: ast.AST) -> Value:
    """`Path(...)` of texts and other paths."""
    if not all(arg.type in (str, *PATHS) for arg in args):
        raise a.decline("a path is made of something other than texts and paths", node)
    for library in (FILES, *MADE_PATHS):
        unpatched(a, library, "a path", node)
    return Value(A_PATH)


def call_path(a: "Analyzer", name: str, args: list[Value], keywords: Any, node: ast.AST) -> Value:
    """A method of a path that only reads."""
    if name == "open":
        check_open(a, args, keywords, node)
    a.waits()
    return result(PATH_METHODS[name])


def check_open(a: "Analyzer", args: list[Value], keywords: Any, node: ast.AST) -> None:
    """The arguments of `open()` after the path: is it for reading?"""
    mode = args[0] if args else keywords.get("mode")
    if len(args) > 1 or set(keywords) - {"mode", "encoding", "errors", "newline"}:
        raise a.decline("open() is called with options that are not analysed", node)
    if mode is not None and not (mode.is_constant and mode.obj in READ_MODES):
        raise a.decline("open() is called for writing", node, impure=True)


def check_shared(a: "Analyzer", kind: type, node: ast.AST) -> None:
    """Objects that carry something from one call to the next, or belong to a thread, are used in order."""
    for base in kind.__mro__:
        reason = IN_ORDER.get((base.__module__, base.__name__))
        if reason is not None:
            raise a.decline(reason + MARK_IT, node)


def marked_call(a: "Analyzer", callee: Value, args: list[Value], node: ast.AST) -> Value | None:
    """A call of a function that the user has marked as independent: it waits, and nobody looks inside it. So
    nothing is known afterwards of what it was given. None for any other function."""
    if not is_independent(callee.obj):
        return None
    assert callee.slot is not None
    a.guards.expect(callee.slot, "is", callee.obj)
    for value in args:
        _hand_over(a, value, node, set())
    a.waits()
    return opaque()


def _hand_over(a: "Analyzer", value: Value, node: ast.AST, seen: set[int]) -> None:
    """Unknown code has got this object: it may keep it, and change all that it holds."""
    if value.function is not None or value.method is not None or value.type in ITERATORS:
        raise a.decline("it hands a function or iterator of its own to one marked as independent", node)
    value.fresh = False
    held = value.content
    if id(held) in seen:
        return
    seen.add(id(held))
    for inner in [*(held.parts or ()), held.elem, held.key, *(value.attrs or {}).values()]:
        if inner is not None:
            _hand_over(a, inner, node, seen)
    value.attrs = None
    if value.type in CHANGEABLE:
        held.parts, held.elem = None, opaque()
        held.key = opaque() if value.type is dict else None


def load_json(a: "Analyzer", args: list[Value], node: ast.AST) -> Value:
    """`json.load` of a file that is open for reading, without hooks."""
    if len(args) != 1 or args[0].type is not ReadFile:
        raise a.decline("json.load gets something other than a file opened for reading", node)
    unpatched(a, JSON, "json.load", node)
    a.waits()
    return opaque()


def unpatched(a: "Analyzer", library: Unpatched, what: str, node: ast.AST) -> None:
    """Asked of the library now and by the guards at each call: also when a patch is gone, that is seen."""
    still = library.holds()
    held = a.guards.note("const", library, None)
    a.guards.expect(a.guards.note("still", held, None), "is", still)
    if not still:
        raise a.decline(f"something behind {what} was replaced, which must see each call in its turn", node)


def result(given: Any) -> Value:
    if isinstance(given, type):
        return Value(given, fresh=given is ReadFile)
    return given()
