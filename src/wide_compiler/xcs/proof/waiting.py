"""Calls that may overlap but must not run twice: whitelisted calls that wait for something they only read,
and calls of functions marked as independent."""

import ast
import functools
import http.client
import io
import json
import os
import pathlib
import socket
import sys
import time
import types
import urllib.request
from typing import TYPE_CHECKING, Any

from ..independent import is_independent
from .class_tables import Behaviour
from .kinds import Iterator, Opaque, Plain, words
from .values import Value, opaque

if TYPE_CHECKING:
    from .analysis import Analyzer
    from .python_calls import CallArguments

PATHS = (pathlib.PosixPath, pathlib.WindowsPath)
# The handlers of urllib's default opener. None of them keeps state between calls.
_HANDLERS = tuple(
    getattr(urllib.request, f"{name}Handler")
    for name in words("Proxy Unknown HTTP HTTPDefaultError HTTPRedirect FTP File Data HTTPS")
    if hasattr(urllib.request, f"{name}Handler")  # HTTPS exists only if Python has ssl
)
_HANDLERS += (urllib.request.HTTPErrorProcessor,)
# For each HTTP client: the module of its get(), and the classes that a call uses.
_CLIENTS = {
    "requests.api": (("requests.sessions", "Session"), ("requests.adapters", "HTTPAdapter")),
    "httpx._api": (("httpx._client", "Client"), ("httpx._transports.default", "HTTPTransport")),
}


class Web(Behaviour):
    """Guards urllib and its global opener."""

    def holds(self) -> bool:
        opener: Any = urllib.request._opener  # type: ignore[attr-defined]
        plain = opener is None or type(opener) is urllib.request.OpenerDirector
        handlers = getattr(opener, "handlers", ())
        return plain and all(type(h) in _HANDLERS for h in handlers) and super().holds()


# Recorded when this library is imported.
JSON = Behaviour([json.JSONDecoder], map(vars, (json, json.decoder, json.scanner)))  # type: ignore[attr-defined]
FILES = Behaviour(PATHS, map(vars, (pathlib, io, os, os.path, sys.modules[os.path.exists.__module__])))
_CLASSES = [urllib.request.OpenerDirector, *_HANDLERS, http.client.HTTPConnection]
WEB = Web(_CLASSES, map(vars, (urllib.request, http.client, socket)))


def client_of(function: Any) -> Behaviour | None:
    """Return the guard of the HTTP client whose get() this function is; None for other functions.

    The client's classes are recorded at the first use. None is also returned if they were patched before.
    """
    if not isinstance(function, types.FunctionType):
        return None
    home: Any = function.__globals__.get("__name__")
    space = vars(sys.modules[home]) if home in _CLIENTS else {}
    if function.__globals__ is not space or space.get("get") is not function:
        return None
    return _client(home)


@functools.cache
def _client(home: str) -> Behaviour | None:
    kinds = []
    for module, name in _CLIENTS[home]:
        space = vars(sys.modules[module])
        kinds.append(space[name])
        table = {**vars(space[name]), "stream": None}  # get() does not call it, and httpx decorates it
        methods = [held for held in table.values() if callable(held) and not isinstance(held, type)]
        if not all(type(m) is types.FunctionType and m.__globals__ is space for m in methods):
            return None
    return Behaviour(kinds, [vars(sys.modules[home])])


def require(a: "Analyzer", library: Any, what: str, node: ast.AST) -> None:
    """Check that the library is unpatched, now and at each call. A removed patch is noticed too."""
    still = library.holds()
    a.guards.require(still, "still", a.guards.note("const", library))
    a.demand(still, f"a function or class behind {what} was patched, so its calls stay in order", node)


class ReadFile:
    """Represents a file opened for reading, or the response to a GET request."""


def _lines(kind: Any) -> Any:
    return lambda make: make(list, Value(kind))


FUNCTIONS: dict[Any, Any] = {
    time.sleep: type(None), **dict.fromkeys((os.path.exists, os.path.isfile, os.path.isdir), bool),
    os.path.getsize: int, os.path.getmtime: float, os.listdir: _lines(str), open: ReadFile,
    urllib.request.urlopen: ReadFile,
}  # fmt: skip
READ_MODES = ("r", "rb", "rt", "br", "tr")
# Attributes and methods of types that are only read from.
ATTRIBUTES: dict[Any, dict[str, Any]] = {
    ReadFile: {"text": Value(str), "content": Value(bytes), "ok": Value(bool), "headers": opaque(),
               **dict.fromkeys(("status", "status_code"), Value(int))},
    **dict.fromkeys(PATHS, dict.fromkeys(("name", "stem", "suffix"), Value(str))),
}  # fmt: skip
METHODS: dict[Any, dict[str, Any]] = {
    ReadFile: {"read": Plain, "readline": Plain, "readlines": _lines(Plain), "close": type(None),
               "json": Opaque, "raise_for_status": type(None)},
    **{path: {"read_text": str, "read_bytes": bytes, "open": ReadFile,
              **dict.fromkeys(("exists", "is_file", "is_dir"), bool)} for path in PATHS},
}  # fmt: skip


def waiting_call(a: "Analyzer", found: Any, call: "CallArguments") -> Value | None:
    """Analyse a call of a waiting function. Returns None for other functions.

    The library behind the function must be unpatched.
    """
    if found is json.load:
        opened = [v.type for v in call.values] == [ReadFile]
        a.demand(opened, "the argument of json.load is not a file that the body opens to read", call.node)
        require(a, JSON, "json.load", call.node)
        a.waits()
        return opaque()
    client = None if found in FUNCTIONS else client_of(found)
    if client is None and found not in FUNCTIONS:
        return None
    if not isinstance(found, types.BuiltinFunctionType):  # builtins cannot be patched
        library = client or (WEB if found is urllib.request.urlopen else FILES)
        require(a, library, call.text, call.node)
    for value in call.values:
        if value.type in PATHS:
            require(a, FILES, call.text, call.node)
        elif not value.is_safe:
            a.known(False, "an argument", call.node)
    if found is open:
        _check_open(a, call.args[1:], call)
        if call.args and call.args[0].type not in (str, *PATHS):
            raise a.decline("the argument of open() is not a str or pathlib path", call.node)
    else:
        allowed = {"timeout"} if client is None else {"params", "timeout", "headers"}
        if set(call.keywords) - allowed or (client is None and len(call.args) != 1):
            raise a.decline(call.options_unknown, call.node)
    a.waits()
    return _result(FUNCTIONS.get(found, ReadFile), a.made)


def waiting_method(a: "Analyzer", kind: Any, name: str, call: "CallArguments") -> Value:
    """Analyse a method of a file or path that only reads."""
    a.known(call.safe, "an argument", call.node)
    if name == "open":
        _check_open(a, call.args, call)
    a.waits()
    return _result(METHODS[kind][name], a.made)


def _check_open(a: "Analyzer", args: list[Value], call: "CallArguments") -> None:
    """Raise `Decline` unless the arguments of `open()` after the path open it for reading."""
    mode = args[0] if args else call.keywords.get("mode")
    if len(args) > 1 or set(call.keywords) - {"mode", "encoding", "errors", "newline"}:
        raise a.decline(call.options_unknown, call.node)
    if mode is not None and not (mode.is_constant and mode.obj in READ_MODES):
        raise a.decline("side effect: open() for writing", call.node, impure=True)


def _result(given: Any, make: Any) -> Value:
    return Value(given, fresh=given is ReadFile) if isinstance(given, type) else given(make)


def marked_call(a: "Analyzer", callee: Value, call: "CallArguments") -> Value | None:
    """Analyse a call of a function marked as independent. Returns None for other functions.

    The function is not analysed, so it may keep and change all that it receives.
    """
    if not is_independent(callee.obj):
        return None
    assert callee.slot is not None
    a.guards.expect(callee.slot, "is", callee.obj)
    own = any(value.method is not None or value.type is Iterator for value in call.values)
    a.demand(not own, "a function marked as independent gets a bound method or an iterator", call.node)
    a.exposed = a.exposed or any(value.may_be_changed for value in call.values)
    a.waits()
    return opaque()
