"""Whitelists: functions and methods known to change nothing, and what they return.

A name that is not here is not known to be pure. Results are given as a type, or as a function of the values
of the arguments (of a method: of its receiver and its arguments).
"""

import base64
import builtins
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
import torch

from .kinds import Arrayish, Number, Plain, words
from .values import Value, iterator, join_all, joined_list, list_of, opaque, tuple_of

Values = list[Value]


class Match(Plain):
    """Stands for a match of a regular expression."""


class Digest:
    """Stands for a hash object of hashlib."""


def _sum(args: Values) -> Value:
    elem = args[0].element()
    if len(args) > 1:  # a sum of nothing is the start itself
        start = args[1]
        both = join_all([elem, start])
        kind = torch.Tensor if elem.is_tensor and start.is_number else both.type
        return Value(Number if both.is_number else kind, fresh=start.fresh and start.is_array)
    if elem.is_array or elem.is_tensor:
        return Value(elem.type, fresh=True)
    return Value(Number if elem.is_number and elem.type not in (int, float, complex) else elem.type)


def _least(args: Values) -> Value:
    """One of them, or the default."""
    found = join_all(args if len(args) > 1 else [args[0].element()])
    return Value(found.type) if not found.is_safe or found.fresh else found


def with_options(found: Any, args: Values, keywords: dict[str, Value]) -> Values:
    """Arguments by name that may come back: a default, a start, entries of a dict."""
    if found in (min, max) and "default" in keywords:
        return [args[0].element(), keywords["default"]]
    if found in (sum, math.prod) and "start" in keywords:
        return [args[0], keywords["start"]]
    if found is dict and keywords:
        made = _dict(args)
        for value in keywords.values():
            made.may_hold(value, Value(str))
        return [made]
    return args


def _absolute(args: Values) -> Value:
    if args[0].is_array or args[0].is_tensor:
        return Value(args[0].type, fresh=True)
    return Value(int if args[0].type is bool else args[0].type if args[0].type in (int, float) else Number)


def _rounded(args: Values) -> Value:
    if args[0].is_array or args[0].is_tensor:
        return Value(args[0].type)
    return Value(int if len(args) == 1 and args[0].type in (int, float) else Number)


def _arithmetic(*kinds: Any) -> Any:
    """Numbers from numbers; of arrays and tensors, what may be one of them."""

    def give(args: Values) -> Value:
        given = next((a for a in args if a.is_tensor), next((a for a in args if a.is_array), None))
        made = [Value(torch.Tensor if given.is_tensor else Arrayish) if given else Value(k) for k in kinds]
        return made[0] if len(made) == 1 else tuple_of(made)

    return give


def _sequence(kind: type, ordered: bool = True) -> Any:
    def make(args: Values) -> Value:
        made = joined_list(args[:1], kind)
        if args and args[0].parts is not None and kind in (list, tuple) and ordered:
            made.parts, made.elem = list(args[0].parts), None
        return made

    return make


def _dict(args: Values) -> Value:
    made = Value(dict, fresh=True)
    if args and args[0].type is dict:
        made.key, made.elem = args[0].key, args[0].elem
    elif args:
        for pair in args[0].elements():
            parts = pair.parts if pair.parts is not None and len(pair.parts) == 2 else [pair.element()] * 2
            made.key, made.elem = parts
    return made


FUNCTIONS: dict[Any, Any] = {
    abs: _absolute, len: int, min: _least, max: _least, sum: _sum, round: _rounded, int: int, float: float,
    bool: bool, complex: complex, str: str, bytes: bytes, repr: str, sorted: _sequence(list, False),
    list: _sequence(list), tuple: _sequence(tuple), set: _sequence(set), frozenset: _sequence(frozenset),
    dict: _dict, range: range, zip: lambda args: iterator(lambda: tuple_of([a.element() for a in args])),
    enumerate: lambda args: iterator(lambda: tuple_of([Value(int), args[0].element()])),
    **dict.fromkeys((reversed, iter), lambda args: iterator(args[0].element)),
    any: bool, all: bool, divmod: _arithmetic(Number, Number), pow: _arithmetic(Number), ord: int, chr: str,
    hex: str, bin: str, oct: str, ascii: str, format: str, slice: slice, hash: int, callable: bool,
    zlib.crc32: int, zlib.adler32: int, zlib.compress: bytes, zlib.decompress: bytes,
    base64.b64encode: bytes, base64.b64decode: bytes, json.loads: lambda args: opaque(), json.dumps: str,
    re.sub: str, re.match: Match, re.search: Match, re.fullmatch: Match, re.escape: str,
    re.findall: lambda args: list_of(Value(Plain)), re.split: lambda args: list_of(Value(Plain)),
    hashlib.sha256: Digest, hashlib.sha1: Digest, hashlib.md5: Digest, hashlib.blake2b: Digest,
    hashlib.sha512: Digest, hashlib.pbkdf2_hmac: bytes,
    os.path.join: str, os.path.basename: str, os.path.dirname: str, string.capwords: str,
    os.path.splitext: lambda args: tuple_of([Value(str), Value(str)]),
}  # fmt: skip
_INTEGER = words("floor ceil trunc factorial comb perm gcd lcm isqrt")
_TRUTH = words("isnan isinf isfinite isclose")
for _name, _function in vars(math).items():
    if callable(_function):
        FUNCTIONS[_function] = int if _name in _INTEGER else bool if _name in _TRUTH else float
FUNCTIONS[math.prod] = lambda args: _arithmetic(Number)([args[0].element(), *args[1:]])
FUNCTIONS[math.modf] = FUNCTIONS[math.frexp] = lambda args: tuple_of([Value(float), Value(Number)])
for _name in words("add sub mul truediv floordiv mod neg pow lt le gt ge eq ne"):
    FUNCTIONS[getattr(operator, _name)] = "operator"
# They take all that a generator gives before they return.
EATERS = (sum, any, all, min, max, list, tuple, set, frozenset, dict, sorted)
ITERATING = (list, tuple, zip, enumerate, reversed, iter, len)  # they look at nothing inside
MAKERS = (list, tuple, set, dict, frozenset)  # they take no arguments, too
EXCEPTIONS = tuple(e for e in vars(builtins).values() if isinstance(e, type) and issubclass(e, BaseException))

# `isinstance` and `type` look at a value without touching it, so anything may be handed to them.
METACLASSES = (type, type(torch.Tensor), type(torch.nn.Parameter))  # whose `__instancecheck__` is known
LOOKERS = {isinstance: bool, issubclass: bool, type: type}

_TEXT = words("""capitalize casefold center expandtabs format join ljust lower lstrip removeprefix
 removesuffix replace rjust rstrip strip swapcase title translate upper zfill""")
_TEXT_INT = words("count find index rfind rindex")
_TEXT_BOOL = words("""endswith isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric
 isprintable isspace istitle isupper startswith""")


def _elem(held: Value) -> Value:
    return held.elem or opaque()


def _key(held: Value) -> Value:
    return held.key or opaque()


def _copy(receiver: Value, args: Values) -> Value:
    made = Value(receiver.type, fresh=True)
    made.parts, made.elem, made.key = receiver.parts and list(receiver.parts), receiver.elem, receiver.key
    if receiver.is_unknown_inside:
        made.elem = made.key = opaque()
    return made


# Of a receiver and arguments.
METHODS: dict[Any, dict[str, Any]] = {
    str: {
        **dict.fromkeys(_TEXT, str), **dict.fromkeys(_TEXT_INT, int), **dict.fromkeys(_TEXT_BOOL, bool),
        "encode": bytes,
        **dict.fromkeys(("split", "rsplit", "splitlines"), lambda held, args: list_of(Value(str))),
        **dict.fromkeys(("partition", "rpartition"), lambda held, args: tuple_of([Value(str)] * 3)),
    },
    bytes: {"decode": str, "hex": str, "split": lambda held, args: list_of(Value(bytes)), "strip": bytes,
            "lower": bytes, "upper": bytes, "startswith": bool, "endswith": bool, "find": int, "count": int,
            "join": bytes, "replace": bytes},
    int: {"bit_length": int, "bit_count": int, "conjugate": int, "to_bytes": bytes},
    float: {"is_integer": bool, "hex": str, "conjugate": float},
    complex: {"conjugate": complex},
    list: {"index": int, "count": int, "copy": _copy},
    tuple: {"index": int, "count": int},
    dict: {
        "get": lambda held, args: join_all([_elem(held), args[1] if len(args) > 1 else Value(type(None))]),
        "items": lambda held, args: iterator(lambda: tuple_of([_key(held), _elem(held)])),
        "keys": lambda held, args: iterator(lambda: _key(held)),
        "values": lambda held, args: iterator(lambda: _elem(held)), "copy": _copy,
    },
    set: dict.fromkeys(("union", "intersection", "difference", "copy"),
                       lambda held, args: joined_list((held, *args), held.type))
         | {"issubset": bool, "issuperset": bool, "isdisjoint": bool},
    range: {"index": int, "count": int},
    Match: {"group": Plain, "groups": lambda r, a: list_of(Value(Plain), tuple), "start": int, "end": int},
    Digest: {"hexdigest": str, "digest": bytes},
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
# How many arguments they take, by what is learnt from them.
TAKES = {"one": (1,), "second": (2,), "value": (2,), "gives": (0, 1, 2)}
ATTRIBUTES: dict[Any, dict[str, Any]] = {
    complex: {"real": float, "imag": float},
    float: {"real": float, "imag": float},
    int: {"real": int, "imag": int, "numerator": int, "denominator": int},
    range: {"start": int, "stop": int, "step": int},
}


def result(given: Any, *args: Any) -> Value:
    """The value a table entry stands for."""
    return Value(given, fresh=given is Digest) if isinstance(given, type) else given(*args)
