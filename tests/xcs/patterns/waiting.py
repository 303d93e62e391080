"""Loops and statements that wait."""

import contextvars
import pathlib
import tempfile
import time

import torch

from wide_compiler.xcs import module

from ._table import pattern

USER = contextvars.ContextVar("user", default="nobody")
FOLDER = pathlib.Path(tempfile.gettempdir())
WAIT = 0.003


def names(n=16):
    return ([f"item {i}" for i in range(n)],)


def fetch(name):
    time.sleep(WAIT)
    return name.upper()


def fetch_or_fail(i):
    time.sleep(WAIT)
    if i == 5:
        raise ValueError(f"no item {i}")
    return i * 2


class Client:
    def __init__(self, wait):
        self.wait = wait

    def get(self, name):
        time.sleep(self.wait)
        return {"name": name, "size": len(name)}


class SlowModel:
    def tokenize(self, text):
        return text.split()

    def encode(self, tokens):
        time.sleep(WAIT)
        return float(len(tokens))


@module
class TextEncoder:
    model: SlowModel
    max_length: int = 512

    def __call__(self, text: str) -> float:
        tokens = self.model.tokenize(text)[: self.max_length]
        return self.model.encode(tokens)


MODEL = SlowModel()


@pattern("threads", names, large=32)
def waiting_comprehension(xs):
    """A comprehension of calls that wait."""
    return [fetch(x) for x in xs]


@pattern("threads", names, large=32)
def waiting_loop(xs):
    """A loop that waits, then appends."""
    out = []
    for x in xs:
        answer = fetch(x)
        out.append(answer.lower())
    return out


@pattern("threads", lambda n=16: (Client(WAIT), *names(n)), large=32)
def client_method(client, xs):
    """A client's method, results in a dict."""
    return {x: client.get(x) for x in xs}


@pattern("threads", names, large=32)
def encoder(texts):
    """An encoder module that waits."""
    encode = TextEncoder(model=MODEL)
    return [encode(text) for text in texts]


@pattern("threads", lambda n=16: (list(range(n)),), large=32)
def failing_item(xs):
    """An item that fails after waiting."""
    return [fetch_or_fail(x) for x in xs]


@pattern("threads", lambda n=16: (list(range(n)),), large=32)
def failing_item_keeps_the_prefix(xs):
    """An item that fails, what came before kept."""
    out = []
    total = 0
    try:
        for x in xs:
            value = fetch_or_fail(x)
            out.append(value)
            total += value
    except ValueError as error:
        return out, total, str(error)
    return out, total, ""


@pattern("threads", names, large=32)
def waiting_sum(xs):
    """sum of a generator that waits."""
    return sum(len(fetch(x)) for x in xs)


@pattern("plain", names, large=8)
def any_that_waits(xs):
    """any over a generator that waits: it stops early."""
    return any(fetch(x) == "ITEM 1" for x in xs)


@pattern("threads", lambda n=3: ("a", "b", "c"))
def independent_statements(a, b, c):
    """Three independent statements that wait."""
    first = fetch(a)
    second = fetch(b)
    third = fetch(c)
    return first + second + third


@pattern("plain", lambda n=3: ("a",))
def dependent_statements(a):
    """Statements of which each needs the one before."""
    first = fetch(a)
    second = fetch(first)
    return second


@pattern("threads", lambda n=16: (list(range(n)),), large=32)
def grad_mode_in_threads(xs):
    """Gradient mode, carried into threads."""
    with torch.no_grad():
        return [waits_for_tensor(x) for x in xs]


def waits_for_tensor(x):
    time.sleep(WAIT)
    weight = WEIGHT * x
    return weight


WEIGHT = torch.ones(2, requires_grad=True)


def read(path):
    with open(path) as file:
        return file.read()


@pattern("threads", lambda n=8: ([str(FILES / f"{i}.txt") for i in range(8)],), large=8)
def files(paths):
    """Files, read."""
    return [read(p) for p in paths]


FILES = FOLDER / "xcs_patterns"
FILES.mkdir(exist_ok=True)
for _i in range(8):
    (FILES / f"{_i}.txt").write_text(f"file {_i}")


def write(path):
    with open(path, "w") as file:
        return file.write("written")


@pattern("plain", lambda n=4: ([str(FILES / f"out{i}.txt") for i in range(4)],), large=4)
def files_written(paths):
    """Files, written."""
    return [write(p) for p in paths]


def wait_if_odd(x):
    if x % 2:
        time.sleep(0.002)
    return x


@pattern("threads", lambda n=16: (list(range(n)),), large=16)
def some_wait(xs):
    """Calls of which only some wait."""
    return [wait_if_odd(x) for x in xs]
