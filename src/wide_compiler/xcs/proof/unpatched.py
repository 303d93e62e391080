"""Libraries whose calls wait: are they as they came? Tests and tools that count, record or answer calls
replace functions and methods of them, and must see each call in its turn."""

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
from collections.abc import Iterable
from typing import Any, Protocol

from .behaviour import Behaviour

PATHS = (pathlib.PosixPath, pathlib.WindowsPath)
# What urllib makes an opener of, if nobody gives it another one. None of them keeps anything of a call.
_HANDLERS = (
    *(urllib.request.ProxyHandler, urllib.request.UnknownHandler, urllib.request.HTTPHandler),
    *(urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPRedirectHandler, urllib.request.FTPHandler),
    *(urllib.request.FileHandler, urllib.request.HTTPErrorProcessor, urllib.request.DataHandler),
    *filter(None, [getattr(urllib.request, "HTTPSHandler", None)]),  # where Python has ssl
)
# Of each client: where its get() lies, and the classes that a call of it goes through.
_CLIENTS = {
    "requests": ("requests.api", (("requests.sessions", "Session"), ("requests.adapters", "HTTPAdapter"))),
    "httpx": ("httpx._api", (("httpx", "Client"), ("httpx", "HTTPTransport"))),
}


class Unpatched(Protocol):
    def holds(self) -> bool: ...


def _namespaces(*modules: types.ModuleType) -> list[dict[str, Any]]:
    return [vars(module) for module in modules]


class Web(Behaviour):
    """urllib, and the opener that all its calls share."""

    def holds(self) -> bool:
        opener: Any = urllib.request._opener  # type: ignore[attr-defined]
        plain = opener is None or type(opener) is urllib.request.OpenerDirector
        return (
            plain and all(type(h) in _HANDLERS for h in getattr(opener, "handlers", ())) and super().holds()
        )


class Made:
    """Objects of a class are made as they were: by the methods that it had then."""

    def __init__(self, kind: type):
        self.kind = kind
        self.way = self._way()

    def _way(self) -> tuple[Any, ...]:
        return self.kind.__new__, self.kind.__init__  # type: ignore[misc]

    def holds(self) -> bool:
        return self._way() == self.way


# As they were when this library was imported.
A_PATH = type(pathlib.Path())
MADE_PATHS = (Made(pathlib.Path), Made(A_PATH))
JSON = Behaviour([json.JSONDecoder], _namespaces(json, json.decoder, json.scanner))  # type: ignore[attr-defined]
FILES = Behaviour(PATHS, _namespaces(pathlib, io, os, os.path, sys.modules[os.path.exists.__module__]))
WEB = Web(
    [urllib.request.OpenerDirector, *_HANDLERS, http.client.HTTPConnection],
    _namespaces(urllib.request, http.client, socket),
)


class Client(Behaviour):
    """A client for the web, with its classes as they are when it is first met: if they are its own."""

    def __init__(self, classes: Iterable[type], namespace: dict[str, Any]):
        super().__init__(classes, [namespace])
        self.own = all(map(_own, classes))

    def holds(self) -> bool:
        return self.own and super().holds()


def client_of(function: Any) -> Unpatched | None:
    """The client whose own get() that is, and no wrapper of it."""
    if type(function) is not types.FunctionType or function.__code__.co_name != "get":
        return None
    for library, (home, _) in _CLIENTS.items():
        module = sys.modules.get(home)
        if (
            module is not None
            and function.__globals__ is vars(module)
            and vars(module).get("get") is function
        ):
            return _client(library)
    return None


@functools.cache
def _client(library: str) -> Client:
    home, classes = _CLIENTS[library]
    held = [getattr(sys.modules[module], name) for module, name in classes]
    return Client(held, vars(sys.modules[home]))


def _own(kind: type) -> bool:
    """Was every method of the class written in its module?"""
    space = vars(sys.modules[kind.__module__])
    methods = [value for value in vars(kind).values() if callable(value) and not isinstance(value, type)]
    return all(type(m) is types.FunctionType and m.__globals__ is space for m in methods)
