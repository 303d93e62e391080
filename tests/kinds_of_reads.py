"""Kinds of things that a forward or a loss reads: for each a function that reads it, and a change of it.

Every kind is made anew for every test, in a module of its own, so that no change outlives its test.
"""

import types
from dataclasses import dataclass
from typing import Any

SOURCE = """
import collections, contextvars, dataclasses, enum, functools, os, sys, threading, types, weakref
import numpy as np
import torch

settings = types.ModuleType("settings_of_" + __name__)
settings.scale = 2.0
NUMBER, OTHER = 2.0, 2.0


class Plain:
    k = 2.0

    def __init__(self, v=2.0):
        self.v = v

    def method(self):
        return 2.0

    @classmethod
    def of_class(cls):
        return cls.k

    @property
    def computed(self):
        return self.v


class Child(Plain):
    pass


class Slotted:
    __slots__ = ("v",)

    def __init__(self):
        self.v = 2.0


class Finds:
    def __init__(self):
        self.table = {"v": 2.0}

    def __getattr__(self, name):
        return self.__dict__["table"][name]


class Mode(enum.Enum):
    A, B = 2.0, 3.0


@dataclasses.dataclass
class Leaf:
    v: float = 2.0


@dataclasses.dataclass
class Tree:
    leaf: Leaf = dataclasses.field(default_factory=Leaf)


@dataclasses.dataclass
class Forest:
    tree: Tree = dataclasses.field(default_factory=Tree)


plain, child, slotted, finds, forest, mode = Plain(), Child(), Slotted(), Finds(), Forest(), Mode.A
objects = [Plain(2.0), Plain(3.0)]
nested, large = {"a": {"b": 2.0}}, {i: float(i) for i in range(500)}
ordered, defaults = collections.OrderedDict(a=2.0), collections.defaultdict(lambda: 2.0)
numbers, queue, members, raw = [2.0, 3.0], collections.deque([2.0, 3.0]), {1, 2}, bytearray(b"\\x02")
array, tensor = np.array([2.0, 3.0]), torch.tensor([2.0])
pair = collections.namedtuple("pair", "v")(2.0)
registry = {"act": torch.relu}
variable, local = contextvars.ContextVar("variable", default=2.0), threading.local()
local.v = 2.0
weak = weakref.ref(plain)


def helper(y):
    return y * 2.0


def reads_a_global(y):
    return y * OTHER


def mutable_default(y, k=[2.0]):
    return y * k[0]


def keyword_default(y, *, k=2.0):
    return y * k


def _closure():
    inner = 2.0

    def read(y):
        return y * inner

    def write(value):
        nonlocal inner
        inner = value

    return read, write


closure, set_closure = _closure()
part = functools.partial(lambda k, y: y * k, 2.0)
anonymous = lambda y: y * 2.0


def wrapped(function):
    factor = [2.0]

    @functools.wraps(function)
    def wrapper(y):
        return function(y) * factor[0]

    wrapper.factor = factor
    return wrapper


@wrapped
def decorated(y):
    return y


"""

# What a forward computes of `y`, and what changes it.
KINDS = {
    "a number in a global": ("y * NUMBER", "m.NUMBER = 3.0"),
    "an attribute of an imported module": ("y * settings.scale", "m.settings.scale = 3.0"),
    "a class attribute": ("y * Plain.k", "m.Plain.k = 3.0"),
    "an attribute of a global object": ("y * plain.v", "m.plain.v = 3.0"),
    "an object with __slots__": ("y * slotted.v", "m.slotted.v = 3.0"),
    "an entry of a nested dict": ("y * nested['a']['b']", "m.nested['a']['b'] = 3.0"),
    "an entry of a large dict": ("y * large[400]", "m.large[400] = 3.0"),
    "a set": ("y * (2.0 if 2 in members else 3.0)", "m.members.discard(2)"),
    "a deque": ("y * queue[0]", "m.queue.appendleft(5.0)"),
    "an array's element": ("y * float(array[0])", "m.array[0] = 3.0"),
    "a tensor written in place": ("y * tensor", "m.tensor.fill_(3.0)"),
    "a replaced helper": ("helper(y)", "m.helper = lambda y: y * 3.0"),
    "a global that a helper reads": ("reads_a_global(y)", "m.OTHER = 3.0"),
    "a field deep in dataclasses": ("y * forest.tree.leaf.v", "m.forest.tree.leaf.v = 3.0"),
    "an environment variable": (
        "y * float(os.environ.get('WIDE_TEST_K', '2'))",
        "m.os.environ['WIDE_TEST_K'] = '3'",
    ),
    "a variable by getenv": ("y * float(os.getenv('WIDE_TEST_L', '2'))", "m.os.environ['WIDE_TEST_L'] = '3'"),
    "a closure": ("closure(y)", "m.set_closure(3.0)"),
    "a decorated function": ("decorated(y)", "m.decorated.factor[0] = 3.0"),
    "a mutable default": ("mutable_default(y)", "m.mutable_default.__defaults__[0][0] = 3.0"),
    "a keyword's default": ("keyword_default(y)", "m.keyword_default.__kwdefaults__['k'] = 3.0"),
    "behind a property": ("y * plain.computed", "m.plain.v = 3.0"),
    "a replaced property": ("y * plain.computed", "m.Plain.computed = property(lambda self: 5.0)"),
    "another enum member": ("y * mode.value", "m.mode = m.Mode.B"),
    "an enum member's value": ("y * Mode.B.value", "m.Mode.B._value_ = 7.0"),
    "a partial": ("part(y)", "m.part = m.functools.partial(lambda k, y: y * k, 3.0)"),
    "a context variable": ("y * variable.get()", "m.variable.set(3.0)"),
    "a thread-local": ("y * local.v", "m.local.v = 3.0"),
    "an item of a list": ("y * numbers[1]", "m.numbers[1] = 9.0"),
    "a replaced method": ("y * plain.method()", "m.Plain.method = lambda self: 3.0"),
    "a method of the instance": ("y * plain.method()", "m.plain.method = lambda: 3.0"),
    "an attribute of a classmethod's class": ("y * plain.of_class()", "m.Plain.k = 3.0"),
    "a base class's method": ("y * child.method()", "m.Plain.method = lambda self: 3.0"),
    "a method that shadows a base class's": ("y * child.method()", "m.Child.method = lambda self: 4.0"),
    "what __getattr__ finds": ("y * finds.v", "m.finds.table['v'] = 3.0"),
    "a name made at run time": ("y * getattr(plain, ''.join(['v']))", "m.plain.v = 3.0"),
    "a named tuple": ("y * pair.v", "m.pair = type(m.pair)(3.0)"),
    "an ordered dict": ("y * ordered['a']", "m.ordered['a'] = 3.0"),
    "a default dict": ("y * (3.0 if 'q' in defaults else 2.0)", "m.defaults['q']"),
    "a bytearray": ("y * raw[0]", "m.raw[0] = 3"),
    "a function's code": ("anonymous(y)", "m.anonymous.__code__ = (lambda y: y * 3.0).__code__"),
    "a registry of functions": ("registry['act'](y)", "m.registry['act'] = m.torch.tanh"),
    "objects in a list": ("y * sum(o.v for o in objects)", "m.objects[1].v = 9.0"),
    "a shadowed builtin": ("y * float(len(numbers))", "m.len = lambda items: 7"),
    "behind a weak reference": ("y * weak().v", "m.plain.v = 3.0"),
    "the default dtype": (
        "y * torch.zeros(()).element_size()",
        "m.torch.set_default_dtype(m.torch.float64)",
    ),
}


@dataclass
class Kind:
    """`read(y)` reads the thing; `change()` changes it."""

    read: Any
    change: Any
    world: types.ModuleType


def make(name: str) -> Kind:
    """A kind in a world of its own."""
    expression, change = KINDS[name]
    world = types.ModuleType("world_of_a_test")
    exec(compile(SOURCE, "<world>", "exec"), vars(world))
    exec(f"def read(y):\n    return {expression}\n", vars(world))
    return Kind(world.read, lambda: exec(change, {"m": world}), world)
