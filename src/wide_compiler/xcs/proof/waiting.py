"""Whitelist of calls that wait for something they only read: they may overlap, each at most once."""

import ast
import os
import pathlib
import time
import types
import urllib.request
from typing import TYPE_CHECKING, Any

from .kinds import Opaque, Plain
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
PATH_METHODS = {"read_text": str, "read_bytes": bytes, "exists": bool, "is_file": bool, "is_dir": bool}


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
