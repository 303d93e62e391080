"""Whitelists: functions and methods known to change nothing, and what they return.

A name that is not here is not known to be pure. Results are given as a type, 'same' (the type of the first
argument or of the receiver), 'elem' (of what it holds), or a function of the argument values.
"""

import base64
import hashlib
import json
import math
import operator
import os.path
import re
import string
import zlib
from typing import Any

import numpy as np

from .values import Arrayish, Iterator, Number, Plain, Value, join_all, list_of, opaque, tuple_of


class Match(Plain):
    """Stands for a match of a regular expression."""


class Digest:
    """Stands for a hash object of hashlib."""


def _sum(args: list[Value]) -> Value:
    elem = args[0].element()
    if elem.is_array or elem.is_tensor:
        return Value(elem.type, fresh=True)
    if elem.type in (int, float, complex):
        return Value(elem.type if len(args) == 1 else Number)
    return Value(Number if elem.is_number else elem.type)


def _least(args: list[Value]) -> Value:
    values = args if len(args) > 1 else [args[0].element()]
    found = join_all(values)
    return Value(found.type) if not found.is_safe or found.fresh else found


def _absolute(args: list[Value]) -> Value:
    if args[0].is_array or args[0].is_tensor:
        return Value(args[0].type, fresh=True)
    return Value(int if args[0].type is bool else args[0].type if args[0].type in (int, float) else Number)


def _sequence(kind: type) -> Any:
    def make(args: list[Value]) -> Value:
        made = list_of(args[0].element() if args else None, kind)
        if args and args[0].parts is not None and kind is not set:
            made.parts = list(args[0].parts)
        return made

    return make


def _dict(args: list[Value]) -> Value:
    made = Value(dict, fresh=True)
    if args:
        pair = args[0].element() if args[0].type is not dict else None
        parts = pair.parts if pair is not None and pair.parts and len(pair.parts) == 2 else None
        made.key, made.elem = (parts[0], parts[1]) if parts else (args[0].key, args[0].elem)
    return made


def _iterator(args: list[Value]) -> Value:
    made = Value(Iterator, fresh=True)
    made.elem = args[0].element()
    return made


def _zip(args: list[Value]) -> Value:
    made = Value(Iterator, fresh=True)
    made.elem = tuple_of([a.element() for a in args])
    return made


def _enumerate(args: list[Value]) -> Value:
    made = Value(Iterator, fresh=True)
    made.elem = tuple_of([Value(int), args[0].element()])
    return made


def _rounded(args: list[Value]) -> Value:
    return Value(int if len(args) == 1 and args[0].type in (int, float) else Number)


FUNCTIONS: dict[Any, Any] = {
    abs: _absolute, len: int, min: _least, max: _least, sum: _sum, round: _rounded, int: int, float: float,
    bool: bool, complex: complex, str: str, bytes: bytes, repr: str, sorted: _sequence(list),
    list: _sequence(list),
    tuple: _sequence(tuple), set: _sequence(set), frozenset: _sequence(frozenset), dict: _dict, range: range,
    zip: _zip, enumerate: _enumerate, reversed: _iterator, iter: _iterator, any: bool, all: bool,
    divmod: lambda args: tuple_of([Value(Number), Value(Number)]), pow: Number, ord: int, chr: str, hex: str,
    bin: str, oct: str, ascii: str, format: str, slice: slice, hash: int, callable: bool,
    zlib.crc32: int, zlib.adler32: int, zlib.compress: bytes, zlib.decompress: bytes,
    base64.b64encode: bytes, base64.b64decode: bytes, json.loads: lambda args: opaque(), json.dumps: str,
    re.sub: str, re.match: Match, re.search: Match, re.fullmatch: Match, re.escape: str,
    re.findall: lambda args: list_of(Value(Plain)), re.split: lambda args: list_of(Value(Plain)),
    hashlib.sha256: Digest, hashlib.sha1: Digest, hashlib.md5: Digest, hashlib.blake2b: Digest,
    hashlib.sha512: Digest, hashlib.pbkdf2_hmac: bytes,
    os.path.join: str, os.path.basename: str, os.path.dirname: str, string.capwords: str,
    os.path.splitext: lambda args: tuple_of([Value(str), Value(str)]),
}  # fmt: skip

# `isinstance` and `type` look at a value without touching it, so anything may be handed to them.
LOOKERS = {isinstance: bool, issubclass: bool, type: type}

_INTEGER = ("floor", "ceil", "trunc", "factorial", "comb", "perm", "gcd", "lcm", "isqrt")
_TRUTH = ("isnan", "isinf", "isfinite", "isclose")
for _name in dir(math):
    _function = getattr(math, _name)
    if callable(_function):
        FUNCTIONS[_function] = int if _name in _INTEGER else bool if _name in _TRUTH else float
FUNCTIONS[math.prod] = Number
FUNCTIONS[math.modf] = FUNCTIONS[math.frexp] = lambda args: tuple_of([Value(float), Value(Number)])
for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "neg",
    "pow",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
):
    FUNCTIONS[getattr(operator, _name)] = "operator"
EXCEPTIONS = tuple(
    e for e in vars(__import__("builtins")).values() if isinstance(e, type) and issubclass(e, BaseException)
)

_TEXT = [
    "capitalize",
    "casefold",
    "center",
    "expandtabs",
    "format",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "removeprefix",
    "removesuffix",
    "replace",
    "rjust",
    "rstrip",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
]
_TEXT_INT = ["count", "find", "index", "rfind", "rindex"]
_TEXT_BOOL = [
    "endswith",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "startswith",
]


def _texts(receiver: Value, args: list[Value]) -> Value:
    return list_of(Value(receiver.type))


def _three(receiver: Value, args: list[Value]) -> Value:
    return tuple_of([Value(receiver.type)] * 3)


def _held(receiver: Value, args: list[Value]) -> Value:
    return receiver.elem or (join_all(receiver.parts) if receiver.parts else opaque())


def _got(receiver: Value, args: list[Value]) -> Value:
    default = args[1] if len(args) > 1 else Value(type(None))
    return join_all([_held(receiver, args), default])


def _items(receiver: Value, args: list[Value]) -> Value:
    made = Value(Iterator, fresh=True)
    made.elem = tuple_of([receiver.key or opaque(), receiver.elem or opaque()])
    return made


def _values(receiver: Value, args: list[Value]) -> Value:
    made = Value(Iterator, fresh=True)
    made.elem = receiver.elem or opaque()
    return made


def _keys(receiver: Value, args: list[Value]) -> Value:
    made = Value(Iterator, fresh=True)
    made.elem = receiver.key or opaque()
    return made


def _again(receiver: Value, args: list[Value]) -> Value:
    made = Value(receiver.type, fresh=True)
    made.parts, made.elem, made.key = receiver.parts and list(receiver.parts), receiver.elem, receiver.key
    return made


METHODS: dict[Any, dict[str, Any]] = {
    str: {
        **dict.fromkeys(_TEXT, str), **dict.fromkeys(_TEXT_INT, int), **dict.fromkeys(_TEXT_BOOL, bool),
        "encode": bytes, **dict.fromkeys(("split", "rsplit", "splitlines"), _texts),
        **dict.fromkeys(("partition", "rpartition"), _three),
    },
    bytes: {"decode": str, "hex": str, "split": _texts, "strip": bytes, "lower": bytes, "upper": bytes,
            "startswith": bool, "endswith": bool, "find": int, "count": int, "join": bytes, "replace": bytes},
    int: {"bit_length": int, "bit_count": int, "conjugate": int, "to_bytes": bytes},
    float: {"is_integer": bool, "hex": str, "conjugate": float},
    complex: {"conjugate": complex},
    list: {"index": int, "count": int, "copy": _again},
    tuple: {"index": int, "count": int},
    dict: {"get": _got, "items": _items, "keys": _keys, "values": _values, "copy": _again},
    set: dict.fromkeys(("union", "intersection", "difference", "copy"), _again)
         | {"issubset": bool, "issuperset": bool, "isdisjoint": bool},
    range: {"index": int, "count": int},
    Match: {"group": Plain, "groups": lambda r, a: list_of(Value(Plain), tuple), "start": int, "end": int},
    Digest: {"hexdigest": str, "digest": bytes},
    Plain: {},
}  # fmt: skip

# Methods that change their receiver: allowed on fresh ones only. What they add is learnt from the argument.
CHANGERS: dict[Any, dict[str, str]] = {
    list: {"append": "one", "extend": "all", "insert": "second", "pop": "gives", "sort": "", "reverse": "",
           "clear": "", "remove": ""},
    dict: {"update": "dict", "setdefault": "value", "pop": "gives", "clear": ""},
    set: {"add": "one", "update": "all", "discard": "", "remove": "", "clear": ""},
    Digest: {"update": ""},
    np.ndarray: {"sort": "", "fill": ""},
    Arrayish: {"sort": "", "fill": ""},
}  # fmt: skip

ATTRIBUTES: dict[Any, dict[str, Any]] = {
    complex: {"real": float, "imag": float},
    float: {"real": float, "imag": float},
    int: {"real": int, "imag": int, "numerator": int, "denominator": int},
    range: {"start": int, "stop": int, "step": int},
}


def result(given: Any, args: list[Value], receiver: Value | None = None) -> Value:
    """The value a table entry stands for."""
    if isinstance(given, type):
        return Value(given, fresh=given is Digest)
    if receiver is not None:
        return given(receiver, args)
    return given(args)
