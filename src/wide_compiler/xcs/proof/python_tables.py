"""Whitelists for Python: pure functions and methods, and their results.

Whatever is not listed is not known to be pure. A result is a `Value`, or a function of `make` and the values
of the arguments (for a method: the receiver and the arguments). `make(kind, elem, key)` returns a new list,
set or dict with these contents.
"""

import base64
import builtins
import hashlib
import itertools
import json
import math
import os.path
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .kinds import Arrayish, Events, Iterator, Number, Opaque, Plain
from .values import Value, join_all, opaque, sequence, tuple_of

Make = Callable[..., Value]


class Match(Plain):
    """Represents a match of a regular expression."""


class Digest:
    """Represents a hash object of hashlib."""


def _tried(function: Any, *samples: Any) -> Any:
    """Return the result type of a function, found by calling it with combinations of samples."""
    for n in range(4):
        for args in itertools.product(samples, repeat=n):
            try:
                return _like(function(*args))
            except Exception:  # does not accept these arguments
                continue
    return Value(Plain)


def _like(given: Any) -> Any:
    if type(given) is list:
        return lambda make, *args: make(list, _like(given[0]))
    known = type(given) in (int, float, bool, complex, str, bytes)
    return tuple_of(*map(_like, given)) if type(given) is tuple else Value(type(given) if known else Opaque)


def _sum(make: Make, first: Value, *start: Value) -> Value:
    found = join_all([first.element(), *start])
    if found.is_number and found.type not in (int, float, complex):
        return Value(Number)
    return Value(found.type, fresh=not start)  # the sum of an empty iterable is `start` itself


def _least(make: Make, *args: Value) -> Value:
    found = join_all(args) if len(args) > 1 else args[0].element()
    return found if found.is_safe and not found.fresh else Value(found.type)


def _number(make: Make, *args: Value) -> Value:
    """Return a number, array or tensor; it may be one of the arguments."""
    array = next((a for a in args if a.is_tensor), next((a for a in args if a.is_array), None))
    return Value(Number if array is None else torch.Tensor if array.is_tensor else Arrayish)


def _absolute(make: Make, first: Value) -> Value:
    return first if first.type in (int, float) else _number(make, first)


def _rounded(make: Make, *args: Value) -> Value:
    return Value(int) if len(args) == 1 and args[0].type in (int, float) else _number(make, *args)


def _new(kind: type) -> Any:
    """Return an entry for a container with the contents of another one."""
    if kind in (tuple, frozenset):
        return lambda make, *given: sequence(given[0].element() if given else join_all([]), kind)
    return lambda make, *given: make(kind, given[0].element() if given else None)


def _dict(make: Make, *given: Value) -> Value:
    if not given or given[0].type is dict:
        return make(dict, *(f(given[0]) for f in (Value.content, Value.element) if given))
    pair = given[0].element()
    key, value = pair.parts if pair.parts is not None and len(pair.parts) == 2 else [pair.element()] * 2
    return make(dict, value, key)


def _iterator(of: Callable[..., Value]) -> Any:
    return lambda make, *args: Value(Iterator, elem=of(*args))


_FOUND = lambda make, *args: make(list, Value(Plain))  # noqa: E731
FUNCTIONS: dict[Any, Any] = {
    **{f: _tried(f, 1.0, 1, (1.0,)) for f in vars(math).values() if callable(f)}, math.prod: _sum,
    abs: _absolute, min: _least, max: _least, sum: _sum, round: _rounded, pow: _number,
    **{kind: Value(kind) for kind in (int, float, bool, complex, str, bytes, range, slice)},
    **{kind: _new(kind) for kind in (list, tuple, set, frozenset)}, sorted: _new(list), dict: _dict,
    zip: _iterator(lambda *args: tuple_of(*[a.element() for a in args])),
    enumerate: _iterator(lambda *args: tuple_of(Value(int), args[0].element())),
    **dict.fromkeys((reversed, iter), _iterator(lambda *args: args[0].element())),
    **dict.fromkeys((len, ord, hash, zlib.crc32), Value(int)),
    **dict.fromkeys((any, all, callable), Value(bool)),
    **dict.fromkeys((repr, chr, hex, format, json.dumps, re.sub, os.path.join, os.path.basename), Value(str)),
    **dict.fromkeys((zlib.compress, zlib.decompress, base64.b64encode, base64.b64decode), Value(bytes)),
    **dict.fromkeys((re.match, re.search, re.fullmatch), Value(Match)),
    **dict.fromkeys((re.findall, re.split), _FOUND), json.loads: opaque(),
    **dict.fromkeys((hashlib.sha256, hashlib.sha1, hashlib.md5, hashlib.blake2b), Value(Digest, fresh=True)),
}  # fmt: skip
# Functions that consume a generator completely before they return.
CONSUMERS = (sum, any, all, min, max, list, tuple, set, frozenset, dict, sorted)
ITERATING = (list, tuple, zip, enumerate, reversed, iter, len)  # do not use the elements
# Allowed keyword arguments. Functions that are not listed and return a number or string allow any.
OPTIONS = {sorted: {"reverse"}, zip: {"strict"}, enumerate: {"start"}, round: {"ndigits"}}
EXCEPTIONS = tuple(e for e in vars(builtins).values() if isinstance(e, type) and issubclass(e, BaseException))

# `isinstance` and `type` accept any value, since they do not use it.
# Metaclasses with a known `__instancecheck__`.
METACLASSES = (type, type(torch.Tensor), type(torch.nn.Parameter))
LOOKERS = {isinstance: bool, type: type}

# All public methods and attributes of numbers and strings are pure.
_PUBLIC = {
    type(sample): {name: getattr(sample, name) for name in dir(sample) if not name.startswith("_")}
    for sample in (1, 1.0, 1j, "a", b"a", range(1))
}
ATTRIBUTES: dict[Any, dict[str, Any]] = {
    kind: {name: Value(type(held)) for name, held in names.items() if not callable(held)}
    for kind, names in _PUBLIC.items()
}


def _copy(make: Make, held: Value) -> Value:
    return _dict(make, held) if held.type is dict else make(held.type, held.element())


def _got(make: Make, held: Value, key: Value, *default: Value) -> Value:
    return join_all([held.content(), *(default or [Value(type(None))])])


# Results of methods, as values or functions of the receiver and the arguments.
METHODS: dict[Any, dict[str, Any]] = {
    **{kind: {name: _tried(held, "a", b"a", 0, 1, [b"a"]) for name, held in names.items() if callable(held)}
       for kind, names in _PUBLIC.items()},
    list: {"index": Value(int), "count": Value(int), "copy": _copy},
    tuple: {"index": Value(int), "count": Value(int)},
    dict: {
        "get": _got, "copy": _copy,
        "items": _iterator(lambda held: tuple_of(held.element(), held.content())),
        "keys": _iterator(Value.element), "values": _iterator(Value.content),
    },
    Digest: {"hexdigest": Value(str), "digest": Value(bytes)},
    Match: {"group": Value(Plain), "groups": sequence(Value(Plain)), "start": Value(int), "end": Value(int)},
}  # fmt: skip
# Methods that modify their receiver, allowed on fresh receivers only.
CHANGERS: dict[Any, tuple[str, ...]] = {
    list: ("append", "extend"), Events: ("append",), set: ("add",), Digest: ("update",),
    **dict.fromkeys((np.ndarray, Arrayish), ("sort", "fill")),
}  # fmt: skip


def result(given: Any, make: Make, *args: Value) -> Value:
    """Return the value of a table entry."""
    return given if isinstance(given, Value) else given(make, *args)
