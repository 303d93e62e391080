"""Observe one real run of a copy of a member: what its Python reads, and what a graph would lose."""

import functools
import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..guards import Observer, Snapshot
from ..remote_tensors import address
from .failure import HasEffects
from .lock import CAPTURE
from .skeleton import copy_member
from .state import canonical_names, slots
from .strides import strided_copy

# A forward that imports modules is run again, up to this many times.
_IMPORTING_RUNS = 3


@dataclass
class Observation:
    """The result of one observed run of a member.

    Attributes:
        effects: reasons why a graph would not be equivalent to the forward.
        stores: names that its code assigns; None means any. Other names can only be set by another thread.
        functions: classes of custom autograd functions that it applied.
        asks_grad_mode: whether its code reads the grad mode.
        asks_tracing: whether its code asks if PyTorch is compiling or exporting.
        checkpointed: paths of the submodules that it ran under `torch.utils.checkpoint`.
        written: canonical paths of the tensors whose values it changed.
        output: the tensors of its output; None if it drew random numbers.
        writes_inputs: whether it wrote into a tensor of its arguments.
    """

    reads: Snapshot
    originals: dict[int, Any]  # id of an object of the copy -> the member's object
    effects: list[str]
    stores: frozenset[str] | None
    functions: list[type]
    asks_grad_mode: bool
    asks_tracing: bool
    checkpointed: frozenset[str] = frozenset()
    written: set[str] = field(default_factory=set)
    output: list[Tensor] | None = None
    writes_inputs: bool = False

    def outside(self) -> Snapshot:
        """Return what was read outside of the member."""
        return self.reads.without(self.originals.keys())

    def inside(self) -> Snapshot:
        """Return what was read in the member, attributed to its own objects instead of the copy's."""
        return self.reads.moved(self.originals)

    def check(self) -> "Observation":
        """Return self; raise `HasEffects` if a graph would not be equivalent to the forward."""
        if self.effects:
            raise HasEffects(self.effects[0])
        return self


def observe_member(
    member: nn.Module,
    args: tuple,
    kwargs: dict,
    grad: bool = True,
    shared: Collection[Any] = (),
    tensor_of: Callable[[str], Tensor] | None = None,
) -> Observation:
    """Run a copy of `member` on copies of the arguments. Errors of the member are raised.

    Python state that the forward changes, and the random state, are restored. Objects in `shared`, which the
    member shares with others, are not copied. `tensor_of` returns the tensor of a path, if the member is a
    skeleton.
    """
    for _ in range(_IMPORTING_RUNS):
        observation, imported = _observe(member, args, kwargs, grad, shared, tensor_of)
        if not imported:
            break
    return observation


def _observe(
    member: nn.Module, args: tuple, kwargs: dict, grad: bool, shared: Collection[Any], tensor_of: Any
) -> tuple[Observation, bool]:
    """Run once; return what was seen, and whether it imported modules (their effects are not its own)."""
    # Imported now, because the first import registers abstract classes, which would change what is read.
    importlib.import_module("torch.export._trace")
    copy, originals = copy_member(member, shared, tensor_of and (lambda path: tensor_of(path).clone()))
    # Addresses show whether a forward replaces the storage of a parameter (`.data = ...`).
    before = {slot.path: (slot.tensor, _address(slot.tensor)) for slot in slots(copy)}
    structure = _structure(copy)
    mine = _tree.tree_map(copy_of, (args, kwargs))
    given = [x for x in _tree.flatten(mine)[0] if isinstance(x, Tensor) and not x.is_inference()]
    versions = [x._version for x in given]
    observer = Observer([copy], owned=originals.keys())
    # Locked, because a capture patches `apply` of autograd functions, which would look like a user's change.
    with CAPTURE, torch.set_grad_enabled(grad), torch.random.fork_rng(_cuda_devices(copy, mine)):
        before_draws = _random_states(copy, mine)
        output = observer.run(functools.partial(copy, *mine[0], **mine[1]))
        drew = not all(map(torch.equal, before_draws, _random_states(copy, mine)))
    effects = [*observer.effects, *_restructured(structure, _structure(copy))]
    for slot in slots(copy):
        tensor, place = before.get(slot.path, (slot.tensor, _address(slot.tensor)))
        if slot.kind == "parameter" and (slot.tensor is not tensor or _address(slot.tensor) != place):
            effects.append(f"its forward replaces the memory of the parameter {slot.path} (.data)")
    asks = (observer.asks_grad_mode, observer.asks_tracing)
    seen = (observer.stores, observer.functions, *asks, frozenset(observer.checkpointed))
    written = (_written(member, copy, tensor_of), None if drew else _tensors(output))
    writes_inputs = [x._version for x in given] != versions
    observation = Observation(observer.reads, originals, effects, *seen, *written, writes_inputs)
    return observation, observer.imported


def copy_of(leaf: Any) -> Any:
    """Return a copy of a tensor with the same `requires_grad`; a leaf only if `leaf` is one, as a leaf that
    requires gradients cannot be written in place."""
    if not isinstance(leaf, Tensor):
        return leaf
    copy = strided_copy(leaf.detach()).requires_grad_(leaf.requires_grad)
    with torch.enable_grad():
        return copy if leaf.is_leaf else strided_copy(copy)


def _structure(model: nn.Module) -> dict[tuple[str, str], int]:
    """(kind, path) of every submodule, parameter and buffer -> the identity of a submodule, 0 of a tensor."""
    modules = {("module", path): id(module) for path, module in model.named_modules(remove_duplicate=False)}
    return modules | {(slot.kind, slot.path): 0 for slot in slots(model) if slot.kind != "constant"}


def _restructured(before: dict[tuple[str, str], int], after: dict[tuple[str, str], int]) -> list[str]:
    """Effects on the structure of a member, which a graph would lose: the outermost first."""
    for (kind, path), identity in before.items():
        if (kind, path) not in after:
            return [f"its forward removes the {kind} {path}"]
        if after[kind, path] != identity:
            return [f"its forward replaces the module {path}"]
    return [f"its forward makes the {kind} {path}" for kind, path in after if (kind, path) not in before][:1]


def _written(member: nn.Module, copy: nn.Module, tensor_of: Callable[[str], Tensor] | None) -> set[str]:
    names = canonical_names(member)
    now = {slot.path: slot.tensor for slot in slots(copy)}
    before = {s.path: s.tensor if tensor_of is None else tensor_of(names[s.path]) for s in slots(member)}
    return {names[p] for p, tensor in before.items() if p not in now or not _equal(tensor, now[p])}


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.device.type == "meta" or one.shape != other.shape or one.dtype != other.dtype:
        return one.shape == other.shape
    if one.is_floating_point():  # bitwise: NaN equals NaN, and small floats have no comparison
        bits = _BITS[one.dtype.itemsize]
        return torch.equal(one.view(bits), other.view(bits))
    return torch.equal(one, other)


def _address(tensor: Tensor) -> int:
    if tensor.layout != torch.strided or tensor.device.type == "meta" or torch.nn.parameter.is_lazy(tensor):
        return 0
    return address(tensor)


def _tensors(output: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in _tree.flatten_output(output)[0] if isinstance(leaf, Tensor)]


def _random_states(member: nn.Module, arguments: Any) -> list[Tensor]:
    devices = _cuda_devices(member, arguments)
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def _cuda_devices(member: nn.Module, arguments: Any) -> list[Any]:
    """Return the CUDA devices whose random state a run may change."""
    tensors = [*member.parameters(), *member.buffers(), *_tree.flatten(arguments)[0]]
    return list({t.device for t in tensors if isinstance(t, Tensor) and t.is_cuda})
