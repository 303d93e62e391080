"""Whitelist of calls that wait for something they only read: they may overlap, each at most once."""

import os
import pathlib
import time
import urllib.request
from typing import Any

from .kinds import Opaque, Plain
from .values import Value, list_of


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
}
RESPONSE_ATTRIBUTES = ("text", "content", "status", "status_code", "headers", "ok")
PATHS = (pathlib.PosixPath, pathlib.WindowsPath)
PATH_METHODS = {"read_text": str, "read_bytes": bytes, "exists": bool, "is_file": bool, "is_dir": bool}
CLIENTS = ("requests", "httpx")  # where imported: their get() waits and sends no body


def client_get(function: Any) -> bool:
    """Is this `requests.get` or `httpx.get`?"""
    module = (getattr(function, "__module__", "") or "").split(".")[0]
    return module in CLIENTS and getattr(function, "__name__", "") == "get"


def result(given: Any) -> Value:
    if isinstance(given, type):
        return Value(given, fresh=given is ReadFile)
    return given()
