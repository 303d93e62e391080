"""The members of a wide model: are they still what they were when it was made of them?

A few passes in C over all modules at once: looking must cost less than what one wide call saves.
"""

import itertools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...guards.tensors import TensorGuard, versions
from ..proof.behaviour import NAMESPACES, PYTORCH, Behaviour
from ..work import Bail
from .attributes import INTERNAL, plain_attributes, same_value
from .own_ways import OwnWays

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
TABLES = ("_parameters", "_buffers", "_modules")
PLAIN_TENSORS = (Tensor, nn.Parameter)
_parts = operator.itemgetter(*HOOKS, *TABLES)
_flat = itertools.chain.from_iterable


class Members:
    """What distinct modules held: their classes, submodules, plain attributes, and the numbers of their
    tensors.

    The members are held weakly: nothing here keeps one alive, and `gone` is called when the first one goes.
    What they are made of is held, and must be let go of then.
    """

    def __init__(self, models: Sequence[nn.Module], gone: Callable[[Any], None]):
        trees = [list(walk(model)) for model in models]
        # The members themselves first: who asks about them has them at hand.
        parts = [(lane, *tree[0]) for lane, tree in enumerate(trees)]
        parts += [(lane, *part) for lane, tree in enumerate(trees) for part in tree[1:]]
        modules = [module for _, _, module in parts]
        self.models = [weakref.ref(model, gone) for model in models]
        self.inner = modules[len(models) :]
        self.kinds = list(map(type, modules))
        self.own_ways = OwnWays(modules)
        self.behaviour = Behaviour(set(self.kinds), NAMESPACES)
        if not PYTORCH.holds():
            raise Bail("a class or function of PyTorch was replaced")
        owns = list(map(vars, modules))
        self.plain = plain_attributes(modules)
        self.lists = [v for own in owns for v in own.values() if type(v) is list]
        self.copies = list(map(list, self.lists))
        self.sizes = list(map(len, owns))
        tables = _tables(owns)[1]
        self.lengths = list(map(len, tables))
        self.keys = list(_flat(tables))
        held = list(_flat(map(dict.values, tables)))
        self.is_tensor = [isinstance(h, Tensor) for h in held]
        self.is_other = [not t for t in self.is_tensor]
        self.others = list(itertools.compress(held, self.is_other))
        # Of each tensor: its lane, and the path by which the member knows it.
        homes = [(lane, path) for _ in TABLES for lane, path, _ in parts]
        places = [(*home, key) for home, table in zip(homes, tables, strict=True) for key in table]
        named = list(itertools.compress(places, self.is_tensor))
        self.lanes = [lane for lane, _, _ in named]
        self.paths = [f"{path}.{key}" if path else key for _, path, key in named]
        self.filled: list[
            dict[str, Any]
        ] = []  # tables of parameters, buffers and submodules, if any are in it
        self.empty: list[dict[Any, Any]] = []  # those without, and the hooks
        self.written: list[int] = []  # the versions of all tables when they were last read
        self.note(self._tensors_in(held))

    def are(self, models: Sequence[Any]) -> bool:
        """The very same, in the same order?"""
        own = self.models
        return len(models) == len(own) and all(map(operator.is_, models, map(operator.call, own)))

    def note(self, tensors: list[Tensor]) -> None:
        """These are the tensors whose numbers the wide model has."""
        memory = list(map(memory_of, tensors))  # raises `Bail` before anything is noted
        self.layouts = list(map(_layout, tensors))
        self.guard = TensorGuard(tensors)
        self.tensors, self.memory = tensors, memory
        self.numbers = [None if m is None else bytearray(m) for m in memory]
        self.all_read = None not in self.numbers

    def now(self, models: Sequence[nn.Module]) -> list[Tensor] | None:
        """The tensors of these members, if nothing but tensors has changed."""
        inner = self.inner
        if [*map(type, models), *map(type, inner)] != self.kinds:
            return None
        if not self.behaviour.holds() or not self.own_ways.holds():
            return None
        # Python counts the writes to a table: what nobody has written to is as it was read.
        tables = itertools.chain(map(vars, models), map(vars, inner), self.filled)
        if versions(tables) != self.written and not self._read([*map(vars, models), *map(vars, inner)]):
            return None
        return None if any(self.empty) or self.lists != self.copies else self.found

    def _read(self, owns: list[dict[str, Any]]) -> bool:
        """Look at all that the modules hold."""
        filled = [table for table in _tables(owns)[1] if table]
        written = versions(
            [*owns, *filled]
        )  # before they are read: a write meanwhile is seen by the next look
        hooks, tables = _tables(owns)
        if not all(map(operator.is_, filled, filter(None, tables))) or {*map(type, tables)} != {dict}:
            return False
        if list(map(len, owns)) != self.sizes or list(map(len, tables)) != self.lengths:
            return False
        for pick, which, values in self.plain:
            if not all(map(same_value, _flat(map(pick, itertools.compress(owns, which))), values)):
                return False
        held = list(_flat(map(dict.values, tables)))
        if list(_flat(tables)) != self.keys or not all(
            map(operator.is_, itertools.compress(held, self.is_other), self.others)
        ):
            return False
        tensors = self._tensors_in(held)
        if not all(map(PLAIN_TENSORS.__contains__, map(type, tensors))):
            return False
        same = all(map(operator.is_, tensors, self.tensors))
        self.filled, self.empty = filled, [*hooks, *(table for table in tables if not table)]
        self.found = self.tensors if same else tensors
        self.written = written
        return True

    def _tensors_in(self, held: list[Any]) -> list[Tensor]:
        return list(itertools.compress(held, self.is_tensor))

    def unchanged(self, tensors: list[Tensor]) -> bool:
        """The very tensors, where they were, and every number that can be read here: versions do not tell of
        writes through `.data` or NumPy. Compared as bytes, by lists of `bytearray` and `memoryview`, without
        a copy."""
        return (
            (tensors is self.tensors or all(map(operator.is_, tensors, self.tensors)))
            and self.guard.holds(tensors)
            and self.numbers == self.memory
        )

    def changed(self, tensors: list[Tensor]) -> list[int] | None:
        """The lanes whose tensors, or numbers read here, are others; None if more than that has changed."""
        if list(map(_layout, tensors)) != self.layouts:
            return None
        before = zip(self.tensors, self.guard.addresses, self.memory, self.numbers, strict=True)
        different = {
            lane for lane, now, was in zip(self.lanes, tensors, before, strict=True) if _other(now, *was)
        }
        return sorted(different)


def walk(model: nn.Module, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, nn.Module]]:
    """A module and all within it, each once and with its path, as `named_modules` gives them: but no class
    and no module can have a say in it."""
    seen = set() if seen is None else seen
    if id(model) in seen:
        return
    seen.add(id(model))
    own = vars(model)
    if not own.keys() >= INTERNAL or not all(type(own[table]) is dict for table in TABLES):
        raise Bail("a module that keeps its parameters or submodules in a table of its own kind")
    yield path, model
    for name, inner in own["_modules"].items():
        if inner is not None:
            yield from walk(inner, f"{path}.{name}" if path else name, seen)


def tensors_of(model: nn.Module) -> list[Tensor]:
    """Its parameters and buffers; those of a type of their own are not asked for anything here."""
    owns = [vars(module) for _, module in walk(model)]
    held = [t for own in owns for table in ("_parameters", "_buffers") for t in own[table].values()]
    return [t for t in held if type(t) in PLAIN_TENSORS]


def _tables(owns: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """All tables of hooks; all tables of parameters, then of buffers, then of submodules."""
    parts = list(_flat(map(_parts, owns)))
    step = len(HOOKS) + len(TABLES)
    by_name = [parts[i::step] for i in range(step)]
    return list(_flat(by_name[: len(HOOKS)])), list(_flat(by_name[len(HOOKS) :]))


def _other(
    now: Tensor, tensor: Tensor, address: int, memory: memoryview | None, numbers: bytearray | None
) -> bool:
    return now is not tensor or now.data_ptr() != address or numbers != memory


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def memory_of(tensor: Tensor) -> memoryview | None:
    """The bytes of a tensor, where they lie; None of one on a GPU, where looking at them takes longer than
    copying them."""
    if type(tensor) not in PLAIN_TENSORS:
        raise Bail(f"a parameter of type {type(tensor).__name__}, which may compute in its own way")
    try:
        if tensor.layout is torch.strided and tensor.is_contiguous():
            if tensor.is_cuda and not tensor.is_conj() and not tensor.is_neg():
                return None
            if tensor.is_cpu:
                memory: Any = tensor.detach().view(-1).view(torch.uint8).numpy()
                return memoryview(memory)
    except RuntimeError:  # a conjugate that is not computed yet
        pass
    raise Bail("a parameter whose numbers cannot be watched: not plainly in the memory of the CPU or a GPU")
