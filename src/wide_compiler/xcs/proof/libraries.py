"""Libraries whose calls wait: are they as they came? Tests and tools that count, record or answer calls
replace functions and methods of them, and must see each call in its turn."""

import ast
import functools
import http.client
import io
import json
import os
import pathlib
import socket
import sys
import types
import urllib.request
from typing import TYPE_CHECKING, Any

from .class_tables import Behaviour, Fields

if TYPE_CHECKING:
    from .analysis import Analyzer

PATHS = (pathlib.PosixPath, pathlib.WindowsPath)
A_PATH = type(pathlib.Path())
# What urllib makes an opener of, if nobody gives it another one. None of them keeps anything of a call.
_HANDLERS = tuple(
    getattr(urllib.request, f"{name}Handler")
    for name in [
        "Proxy",
        "Unknown",
        "HTTP",
        "HTTPDefaultError",
        "HTTPRedirect",
        "FTP",
        "File",
        "Data",
        "HTTPS",
    ]
    if hasattr(urllib.request, f"{name}Handler")  # HTTPS: where Python has ssl
)
_HANDLERS += (urllib.request.HTTPErrorProcessor,)
# Of each client: where its get() lies, and the classes that a call of it goes through.
_CLIENTS = {
    "requests": ("requests.api", (("requests.sessions", "Session"), ("requests.adapters", "HTTPAdapter"))),
    "httpx": ("httpx._api", (("httpx", "Client"), ("httpx", "HTTPTransport"))),
}


class Web(Behaviour):
    """urllib, and the opener that all its calls share."""

    def holds(self) -> bool:
        opener: Any = urllib.request._opener  # type: ignore[attr-defined]
        plain = opener is None or type(opener) is urllib.request.OpenerDirector
        handlers = getattr(opener, "handlers", ())
        return plain and all(type(h) in _HANDLERS for h in handlers) and super().holds()


class Client(Behaviour):
    """A client for the web, with its classes as they are when it is first met: if they are its own."""

    def __init__(self, classes: list[type], namespace: dict[str, Any]):
        super().__init__(classes, [namespace])
        self.own = all(map(_own, classes))

    def holds(self) -> bool:
        return self.own and super().holds()


# As they were when this library was imported.
MADE_PATHS = tuple(Fields(kind, "__new__", "__init__") for kind in (pathlib.Path, A_PATH))
JSON = Behaviour([json.JSONDecoder], map(vars, (json, json.decoder, json.scanner)))  # type: ignore[attr-defined]
FILES = Behaviour(PATHS, map(vars, (pathlib, io, os, os.path, sys.modules[os.path.exists.__module__])))
_CLASSES = [urllib.request.OpenerDirector, *_HANDLERS, http.client.HTTPConnection]
WEB = Web(_CLASSES, map(vars, (urllib.request, http.client, socket)))


def client_of(function: Any) -> Client | None:
    """The client whose own get() that is, and no wrapper of it."""
    if type(function) is types.FunctionType and function.__code__.co_name == "get":
        for library, (home, _) in _CLIENTS.items():
            space = vars(sys.modules[home]) if home in sys.modules else {}
            if function.__globals__ is space and space.get("get") is function:
                return _client(library)
    return None


@functools.cache
def _client(library: str) -> Client:
    home, classes = _CLIENTS[library]
    return Client([getattr(sys.modules[module], name) for module, name in classes], vars(sys.modules[home]))


def _own(kind: type) -> bool:
    """Was every method of the class written in its module?"""
    space = vars(sys.modules[kind.__module__])
    methods = [value for value in vars(kind).values() if callable(value) and not isinstance(value, type)]
    return all(type(m) is types.FunctionType and m.__globals__ is space for m in methods)


def require(a: "Analyzer", library: Any, what: str, node: ast.AST) -> None:
    """Asked of the library now and by the guards at each call: also when a patch is gone, that is seen."""
    still = library.holds()
    a.guards.require(still, "still", a.guards.note("const", library))
    if not still:
        raise a.decline(f"something behind {what} was replaced, which must see each call in its turn", node)
