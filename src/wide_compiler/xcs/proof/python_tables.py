"""Whitelists: functions and methods known to change nothing, and what they return.

A name that is not here is not known to be pure. A result is given as a type, or as a function of `make` and
the values of the arguments (of a method: of its receiver and its arguments); `make(kind, elem, key)` gives a
new list, set or dict that holds these.
"""

import base64
import builtins
import hashlib
import json
import math
import os.path
import re
import string
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .kinds import Arrayish, Iterator, Number, Plain, words
from .values import Value, join_all, opaque, sequence, tuple_of

Make = Callable[..., Value]


class Match(Plain):
    """Stands for a match of a regular expression."""


class Digest:
    """Stands for a hash object of hashlib."""


def _sum(make: Make, first: Value, *start: Value) -> Value:
    found = join_all([first.element(), *start])
    if found.is_number and found.type not in (int, float, complex):
        return Value(Number)
    return Value(found.type, fresh=not start)  # a sum of nothing is the start itself


def _least(make: Make, *args: Value) -> Value:
    found = join_all(args) if len(args) > 1 else args[0].element()
    return found if found.is_safe and not found.fresh else Value(found.type)


def _number(*kinds: Any, fresh: bool = False) -> Any:
    """A number of the type that the first one has, if that is among these; of arrays and tensors, one."""

    def give(make: Make, *args: Value) -> Value:
        array = next((a for a in args if a.is_tensor), next((a for a in args if a.is_array), None))
        if array is not None:
            return Value(torch.Tensor if array.is_tensor else Arrayish, fresh=fresh)
        return Value(args[0].type if args[0].type in kinds else Number)

    return give


def _rounded(make: Make, *args: Value) -> Value:
    whole = len(args) == 1 and args[0].type in (int, float)
    return Value(int) if whole else _number()(make, *args)


def _new(kind: type) -> Any:
    """A container of what another holds."""
    if kind in (tuple, frozenset):
        return lambda make, *given: sequence(given[0].element() if given else join_all([]), kind)
    return lambda make, *given: make(kind, given[0].element() if given else None)


def _dict(make: Make, *given: Value) -> Value:
    if not given:
        return make(dict)
    if given[0].type is dict:
        return make(dict, given[0].value(), given[0].element())
    pair = given[0].element()
    key, value = pair.parts if pair.parts is not None and len(pair.parts) == 2 else [pair.element()] * 2
    return make(dict, value, key)


def _iterator(of: Callable[..., Value]) -> Any:
    return lambda make, *args: Value(Iterator, elem=of(*args))


def _list_of(kind: Any) -> Any:
    return lambda make, *args: make(list, Value(kind))


_INTEGER = words("floor ceil trunc factorial comb perm gcd lcm isqrt")
_TRUTH = words("isnan isinf isfinite isclose")
FUNCTIONS: dict[Any, Any] = {
    **{f: int if n in _INTEGER else bool if n in _TRUTH else float for n, f in vars(math).items()
       if callable(f)},
    math.prod: lambda make, first, *start: _number()(make, first.element(), *start),
    **dict.fromkeys((math.modf, math.frexp), lambda make, *args: tuple_of(Value(float), Value(Number))),
    abs: _number(int, float, fresh=True), min: _least, max: _least, sum: _sum, round: _rounded,
    pow: _number(), divmod: lambda make, *args: tuple_of(*[_number()(make, *args)] * 2),
    **{kind: kind for kind in (int, float, bool, complex, str, bytes, range, slice)},
    **{kind: _new(kind) for kind in (list, tuple, set, frozenset)}, sorted: _new(list), dict: _dict,
    zip: _iterator(lambda *args: tuple_of(*[a.element() for a in args])),
    enumerate: _iterator(lambda *args: tuple_of(Value(int), args[0].element())),
    **dict.fromkeys((reversed, iter), _iterator(lambda *args: args[0].element())),
    **dict.fromkeys((len, ord, hash, zlib.crc32, zlib.adler32), int),
    **dict.fromkeys((any, all, callable), bool),
    **dict.fromkeys((repr, chr, hex, bin, oct, ascii, format, json.dumps, re.sub, re.escape, string.capwords,
                     os.path.join, os.path.basename, os.path.dirname), str),
    **dict.fromkeys((zlib.compress, zlib.decompress, base64.b64encode, base64.b64decode,
                     hashlib.pbkdf2_hmac), bytes),
    **dict.fromkeys((re.match, re.search, re.fullmatch), Match),
    **dict.fromkeys((re.findall, re.split), _list_of(Plain)),
    **dict.fromkeys((hashlib.sha256, hashlib.sha1, hashlib.md5, hashlib.blake2b, hashlib.sha512), Digest),
    os.path.splitext: lambda make, *args: tuple_of(Value(str), Value(str)),
    json.loads: lambda make, *args: opaque(),
}  # fmt: skip
# They take all that a generator gives before they return.
EATERS = (sum, any, all, min, max, list, tuple, set, frozenset, dict, sorted)
ITERATING = (list, tuple, zip, enumerate, reversed, iter, len)  # they look at nothing inside
# What they may be given by name; others, that give a number or text, anything.
OPTIONS = {sorted: {"reverse"}, zip: {"strict"}, enumerate: {"start"}, round: {"ndigits"}}
EXCEPTIONS = tuple(e for e in vars(builtins).values() if isinstance(e, type) and issubclass(e, BaseException))

# `isinstance` and `type` look at a value without touching it, so anything may be handed to them.
METACLASSES = (type, type(torch.Tensor), type(torch.nn.Parameter))  # whose `__instancecheck__` is known
LOOKERS = {isinstance: bool, issubclass: bool, type: type}

_TEXT = words("""capitalize casefold center expandtabs format join ljust lower lstrip removeprefix
 removesuffix replace rjust rstrip strip swapcase title translate upper zfill""")
_TEXT_BOOL = words("""endswith isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric
 isprintable isspace istitle isupper startswith""")
_FOUND = dict.fromkeys(words("count find index rfind rindex"), int)


def _copy(make: Make, held: Value) -> Value:
    return make(held.type, held.value() if held.type is dict else held.element(),
                held.element() if held.type is dict else None)  # fmt: skip


def _got(make: Make, held: Value, key: Value, *default: Value) -> Value:
    return join_all([held.value(), *(default or [Value(type(None))])])


# Of a receiver and arguments.
METHODS: dict[Any, dict[str, Any]] = {
    str: {
        **dict.fromkeys(_TEXT, str), **_FOUND, **dict.fromkeys(_TEXT_BOOL, bool), "encode": bytes,
        **dict.fromkeys(("split", "rsplit", "splitlines"), _list_of(str)),
        **dict.fromkeys(("partition", "rpartition"), lambda make, *args: tuple_of(*[Value(str)] * 3)),
    },
    bytes: {"decode": str, "hex": str, "split": _list_of(bytes), "startswith": bool, "endswith": bool,
            **_FOUND, **dict.fromkeys(("strip", "lower", "upper", "join", "replace"), bytes)},
    int: {"bit_length": int, "bit_count": int, "conjugate": int, "to_bytes": bytes},
    float: {"is_integer": bool, "hex": str, "conjugate": float},
    complex: {"conjugate": complex},
    list: {"index": int, "count": int, "copy": _copy},
    tuple: {"index": int, "count": int},
    range: {"index": int, "count": int},
    dict: {
        "get": _got, "copy": _copy,
        "items": _iterator(lambda held: tuple_of(held.element(), held.value())),
        "keys": _iterator(Value.element), "values": _iterator(Value.value),
    },
    set: {"copy": _copy, "issubset": bool, "issuperset": bool, "isdisjoint": bool,
          **dict.fromkeys(("union", "intersection", "difference"),
                          lambda make, *sets: make(set, join_all([s.element() for s in sets])))},
    Match: {"group": Plain, "groups": lambda make, *args: sequence(Value(Plain)), "start": int, "end": int},
    Digest: {"hexdigest": str, "digest": bytes},
}  # fmt: skip
# Methods that change their receiver, allowed on fresh ones only: which argument they add to it, or "gives"
# where they give back what it holds.
CHANGERS: dict[Any, dict[str, str]] = {
    list: {"append": "last", "extend": "all", "insert": "last", "pop": "gives", "sort": "", "reverse": "",
           "clear": "", "remove": ""},
    dict: {"setdefault": "value", "pop": "gives", "clear": ""},
    set: {"add": "last", "update": "all", "discard": "", "remove": "", "clear": ""},
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


def result(given: Any, make: Make, *args: Value) -> Value:
    """The value a table entry stands for."""
    return Value(given, fresh=given is Digest) if isinstance(given, type) else given(make, *args)
