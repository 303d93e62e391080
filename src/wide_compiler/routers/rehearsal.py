"""Record one forward of a copy of a model: the modules called, their arguments and dependencies."""

import functools
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _tree
from ..capture import clone_member, structure
from ..model.members import hooks_lost
from .dependencies import Joining, why_apart
from .router_explanation import Declined
from .wide_router import WideRouter

CallId = tuple[str, int]  # a module's path, and the index of its call


class Rehearsal:
    """Module calls and their dependencies, recorded in one forward."""

    def __init__(self, model: nn.Module, args: tuple, kwargs: dict):
        self.model = model
        self.structures = {path: structure(module) for path, module in model.named_modules() if path}
        self.looks: dict[CallId, Any] = {}  # shapes, dtypes and devices of the tensors of each call
        self.flow = _Flow()
        count: Counter[str] = Counter()
        double = clone_member(model)
        for path, module in double.named_modules():
            module.register_forward_pre_hook(self._entering(path, count), with_kwargs=True)
            module.register_forward_hook(lambda *_: self.flow.stack.pop() and None)
        with torch.no_grad(), torch.random.fork_rng(), self.flow:
            own = _tree.tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, (args, kwargs))
            double(*own[0], **own[1])

    def _entering(self, path: str, count: Counter[str]) -> Any:
        def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
            tensors = [leaf for leaf in _tree.flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
            call = (path, count[path])
            count[path] += 1
            self.looks[call] = tuple((t.shape, t.dtype, t.device) for t in tensors)
            self.flow.stack.append(call)

        return enter

    def candidates(self, banned: Collection[str]) -> dict[str, str]:
        """Return the outermost modules called like another one, or twice, without those in `banned`."""
        calls = [(path, look) for (path, _), look in self.looks.items() if path and path not in banned]
        sorts = Counter((self.structures[path], look) for path, look in calls)
        alike = {p for p, look in calls if sorts[self.structures[p], look] > 1 and self._eligible(p)}
        return {path: "a branch" for path in alike if not any(outer in alike for outer in _around(path))}

    def _eligible(self, path: str) -> bool:
        module = self.model.get_submodule(path)
        # A router only calls its towers, which are candidates themselves.
        learns = next(module.parameters(), None) is not None and not isinstance(module, WideRouter)
        return learns and self.structures[path] is not None and not hooks_lost([module])

    @property
    def has_rows(self) -> bool:
        """Whether modules of one structure are called with different numbers of rows."""
        shapes: dict[Any, set[Any]] = {}
        for (path, _), look in self.looks.items():
            if path and len(look) == 1 and look[0][0] and self._eligible(path):
                (shape, *rest) = look[0]
                shapes.setdefault((self.structures[path], shape[1:], *rest), set()).add(shape[0])
        return any(len(rows) > 1 for rows in shapes.values())

    def beside(self, paths: Collection[str]) -> list[list[str]]:
        """Groups of independent modules among `paths`: of one structure, each called once, with one tensor
        whose number of rows may differ."""
        calls = Counter(path for path, _ in self.looks)
        once = [path for path in paths if calls[path] == 1 and self._eligible(path)]
        keys = {
            (path, 0): (self.structures[path], shape[1:], *rest)
            for path in once
            if len(self.looks[path, 0]) == 1
            for shape, *rest in self.looks[path, 0]
            if shape
        }
        before = self._waits({path for path, _ in keys})
        joining = Joining(list(before), before, {unit: key for unit, key in keys.items() if unit in before})
        return [[path for path, _ in group] for group in joining.groups]

    def _waits(self, kept: Collection[str]) -> dict[Any, set[Any]]:
        """For each op, with each call of `kept` as one unit, the units it depends on."""
        units = [next((c for c in stack if c[0] in kept), i) for i, stack in enumerate(self.flow.stacks)]
        before: dict[Any, set[Any]] = {}
        for unit, earlier in zip(units, self.flow.before, strict=True):
            before.setdefault(unit, set()).update(units[i] for i in earlier)
            before[unit].discard(unit)
        return before

    def loose(self, kept: Collection[str], banned: Collection[str]) -> tuple[set[str], list[Declined]]:
        """Return the modules of `kept` that cannot be joined with another, and why. A call is one unit.

        Modules that could be joined with a module inside another one of `kept`, if that were not kept whole,
        are returned only when no others are left.
        """
        before = self._waits(kept)
        keys = {u: self._key(u) for u in before if isinstance(u, tuple)}
        joining = Joining(list(before), before, keys)
        mates: dict[Any, list[CallId]] = {}
        for call in self.looks:
            if call[0] and call[0] not in banned:
                mates.setdefault(self._key(call), []).append(call)
        hidden = {
            call
            for call in joining.loose
            if any(mate[0] not in kept and not self._depend(call, mate) for mate in mates[keys[call]])
        }
        lost = [call for call in joining.loose if call not in hidden] or joining.loose

        def why(key: Any, calls: list[CallId]) -> str:
            if not hidden.isdisjoint(calls):
                return "the independent modules of its structure are inside modules that run together"
            return why_apart(calls, mates[key], self._depend)

        declined = Declined.by_key(self.model, [(keys[call], call[0], call) for call in lost], why)
        return {path for path, _ in lost}, declined

    def _key(self, call: CallId) -> Any:
        return self.structures[call[0]], self.looks[call]

    def _depend(self, a: CallId, b: CallId) -> bool:
        """Return whether one of two calls depends on the other."""
        ops, reached = self._reach
        return bool(reached.get(a, 0) & ops.get(b, 0) or reached.get(b, 0) & ops.get(a, 0))

    @functools.cached_property
    def _reach(self) -> tuple[dict[CallId, int], dict[CallId, int]]:
        """For each call, bit sets of its ops and of all ops that these depend on."""
        ops: dict[CallId, int] = {}
        reached: dict[CallId, int] = {}
        of_op: list[int] = []
        for number, (stack, earlier) in enumerate(zip(self.flow.stacks, self.flow.before, strict=True)):
            bits = 0
            for i in earlier:
                bits |= of_op[i] | 1 << i
            of_op.append(bits)
            for call in stack:
                ops[call] = ops.get(call, 0) | 1 << number
                reached[call] = reached.get(call, 0) | bits
        return ops, reached


class _Flow(TorchDispatchMode):
    """Records for each op the ops it depends on, by the storages they access, and the calls it is in."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[CallId] = []
        self.stacks: list[tuple[CallId, ...]] = []
        self.before: list[set[int]] = []
        self.memory: dict[int, StorageWeakRef] = {}  # weak references keep addresses from being reused
        self.written: dict[int, int] = {}  # storage -> the op that wrote it last
        self.read: dict[int, list[int]] = {}  # storage -> the ops that read it since

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        number, before = len(self.before), set[int]()
        self.before.append(before)
        self.stacks.append(tuple(self.stack))
        reads = self._places((args, kwargs))
        result = func(*args, **kwargs)
        for place in reads:
            if place in self.written:
                before.add(self.written[place])
            self.read.setdefault(place, []).append(number)
        writes = func._schema.is_mutable
        for place in reads if writes else self._places(result) - reads:
            before.update(i for i in self.read.pop(place, ()) if i != number)
            self.written[place] = number
        return result

    def _places(self, tree: Any) -> set[int]:
        places = set()
        for leaf in _tree.flatten(tree)[0]:
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                reference = StorageWeakRef(leaf.untyped_storage())
                self.memory.setdefault(reference.cdata, reference)
                places.add(reference.cdata)
        return places


def _around(path: str) -> list[str]:
    """Paths of the enclosing modules: `a`, `a.b` for `a.b.c`."""
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]
