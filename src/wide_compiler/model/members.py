"""Splitting of N members into one tree of stacked tensors and skeletons without tensors."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..capture import Slot, canonical_names, clone_member, group_by_variant, make_skeleton, slots
from ..capture.lock import OwnLock
from ..capture.skeleton import copy_member
from ..capture.state import home_of
from ..errors import AlignmentError
from ..guards import ATOMS, MODULE_TABLES
from .submodules import Place, Scope
from .train_effects import computes


def lane_tensors(models: Sequence[nn.Module], slot: Slot) -> list[Tensor]:
    """Return each model's tensor at `slot`."""
    return [home_of(model.get_submodule(slot.owner), slot.kind)[slot.name] for model in models]


def is_one_object(tensors: Sequence[Tensor]) -> bool:
    """Return whether all lanes hold the same tensor object."""
    return len(tensors) > 1 and all(t is tensors[0] for t in tensors)


def is_shared(models: Sequence[nn.Module], slot: Slot, tensors: Sequence[Tensor]) -> bool:
    """Return whether a tensor has no lane axis: one object in all lanes, or an equal constant buffer."""
    if is_one_object(tensors):
        return True
    if slot.kind == "parameter" or isinstance(models[0].get_submodule(slot.owner), _NormBase):
        return False
    return len(models) > 1 and all(torch.equal(tensors[0], t) for t in tensors[1:])


def build_tree(
    root: nn.Module, models: Sequence[nn.Module], skip: set[str], held_once: Callable[[Tensor], bool]
) -> tuple[list[Place], set[str], set[str]]:
    """Add the members' stacked tensors under `root`; paths in `skip` belong to registered modules.

    A tensor is one object in all models if each model holds it, or, where there may be one model only, if
    `held_once` says so.

    Returns the places of the canonical tensors, the paths of those with lanes, and the paths of those that
    are one object in all models.
    """
    template = models[0]
    scopes = _scopes(root, template, skip)
    names = canonical_names(template)
    places: dict[str, Place] = {}
    wide: set[str] = set()
    one_object: set[str] = set()
    for slot in slots(template):
        if any(f"{slot.path}.".startswith(f"{path}.") for path in skip):
            continue
        canonical, scope = names[slot.path], scopes[slot.owner]
        if canonical in places:
            _hang(scope, slot, places[canonical].tensor)
            continue
        tensors = lane_tensors(models, slot)
        one = is_one_object(tensors) or held_once(tensors[0])
        if one:
            one_object.add(canonical)
        elif len({id(t) for t in tensors}) < len(tensors) and tensors[0].requires_grad:
            raise AlignmentError(
                f"{slot.path} is one tensor in some lanes and another in others; training would make "
                f"them differ; share it between all lanes or none"
            )
        if one or is_shared(models, slot, tensors):
            # A frozen shared tensor may be large and is not copied; one that may change is copied.
            frozen = slot.kind == "parameter" and not slot.tensor.requires_grad
            data = tensors[0].detach() if frozen else tensors[0].detach().clone()
        else:
            data = torch.stack([t.detach() for t in tensors])
            wide.add(canonical)
        is_parameter = slot.kind == "parameter"
        _hang(scope, slot, nn.Parameter(data, slot.tensor.requires_grad) if is_parameter else data)
        kind = "parameter" if is_parameter else "buffer"
        places[canonical] = Place(canonical, scope, slot.name, kind)
    return list(places.values()), wide, one_object


def _scopes(root: nn.Module, template: nn.Module, skip: set[str]) -> dict[str, nn.Module]:
    scopes: dict[str, nn.Module] = {"": root}
    by_module: dict[int, nn.Module] = {id(template): root}
    for path, module in template.named_modules(remove_duplicate=False):
        if not path or any(path == s or path.startswith(f"{s}.") for s in skip):
            continue
        parent, _, name = path.rpartition(".")
        scope = by_module.setdefault(id(module), Scope(module))
        # Bypass add_module: a member may have a child named `lane`, like a method of WideModel.
        scopes[parent]._modules[name] = scope
        scopes[path] = scope
    return scopes


def _hang(scope: nn.Module, slot: Slot, tensor: Any) -> None:
    if slot.kind == "parameter":
        scope._parameters[slot.name] = tensor
    else:
        scope._buffers[slot.name] = tensor
        if not slot.persistent:
            scope._non_persistent_buffers_set.add(slot.name)


def hooks_lost(models: Sequence[nn.Module], forward: bool = True) -> str:
    """Return which hook a graph of the models would not call; '' if there is none.

    Forward hooks of torch's own parametrisations only compute weights, and are allowed.
    """
    for path, module in ((p, m) for model in models for p, m in model.named_modules()):
        where = path or type(module).__name__
        if module._backward_hooks or module._backward_pre_hooks:
            return f"{where} has a backward hook, which a graph would not call"
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()) if forward else ():
            if getattr(hook, "__module__", type(hook).__module__).split(".")[0] != "torch":
                return f"{where} has a forward hook, which a graph would not call"
    return ""


def _held_by_all(models: Sequence[nn.Module]) -> list[Any]:
    """Return objects (a configuration, a table) that every model holds under the same name.

    They are not copied, so the wide model sees changes to them, as the models would.
    """
    shared: list[Any] = []
    for modules in zip(*(model.modules() for model in models), strict=True) if len(models) > 1 else ():
        for name, value in vars(modules[0]).items():
            if name in MODULE_TABLES or isinstance(value, (*ATOMS, Tensor, nn.Module)):
                continue
            if all(vars(module).get(name) is value for module in modules[1:]):
                shared.append(value)
    return shared


_NUMBERS = itertools.count()  # no two models have the same: they may share programs


@dataclass
class Skeletons:
    """The members' Python objects without weights. Lanes of one variant share a skeleton."""

    variant_of_lane: list[int]
    variants: list[nn.Module]
    separated: bool = False
    shared: list[Any] = field(default_factory=list)  # objects held by all lanes, not copied
    # Changes whenever members run as Python or an overridden `train` is called, because what a capture has
    # read of them may have changed.
    moved: int = field(default_factory=lambda: next(_NUMBERS))
    # Members that run as Python borrow the tensors of their lane, so only one thread may run them.
    lock: OwnLock = field(default_factory=OwnLock)

    @classmethod
    def of(cls, models: Sequence[nn.Module]) -> "Skeletons":
        variant_of_lane = group_by_variant(models)
        leaders = [variant_of_lane.index(v) for v in range(max(variant_of_lane) + 1)]
        shared = _held_by_all(models)
        skeletons = [make_skeleton(models[lane], shared) for lane in leaders]
        return cls(variant_of_lane, skeletons, shared=shared)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Skeletons":
        # deepcopy would lose the strides of stubs whose elements share memory.
        variants = [clone_member(v) for v in self.variants]
        return Skeletons(list(self.variant_of_lane), variants, self.separated)

    def separate(self, constant_of: Callable[[int, str], Tensor]) -> list[dict[int, Any]]:
        """Give every lane its own skeleton and plain tensors, since members run as Python may change them.

        Returns for each lane the copied objects by the id of the original; [] if already separated.
        """
        if self.separated:
            return []
        self.separated = True
        copies = [copy_member(self.variants[v], self.shared) for v in self.variant_of_lane]
        lanes = [lane for lane, _ in copies]
        stands_for = [_reversed(lane, originals) for lane, originals in copies]
        for lane, skeleton in enumerate(lanes):
            names = canonical_names(skeleton)
            for slot in [slot for slot in slots(skeleton) if slot.kind == "constant"]:
                home = home_of(skeleton.get_submodule(slot.owner), slot.kind)
                home[slot.name] = constant_of(lane, names[slot.path])
        self.variants, self.variant_of_lane = lanes, list(range(len(lanes)))
        return stands_for

    def to(self, device: torch.device) -> None:
        """Move plain tensors of separated lanes to a device."""
        for skeleton in self.variants if self.separated else ():
            for slot in [slot for slot in slots(skeleton) if slot.kind == "constant"]:
                home_of(skeleton.get_submodule(slot.owner), slot.kind)[slot.name] = slot.tensor.to(device)

    def select(self, lanes: Sequence[int]) -> None:
        """Make new lane i old lane `lanes[i]`."""
        if self.separated:  # each lane has its own Python state, repeated lanes too
            self.variants = [
                self.copied(self.variants[lane]) if lane in lanes[:i] else self.variants[lane]
                for i, lane in enumerate(lanes)
            ]
            self.variant_of_lane = list(range(len(lanes)))
            return
        old = [self.variant_of_lane[lane] for lane in lanes]
        used = list(dict.fromkeys(old))  # variant 0 is always that of lane 0
        self.variants = [self.variants[v] for v in used]
        self.variant_of_lane = [used.index(v) for v in old]

    def copied(self, skeleton: nn.Module) -> nn.Module:
        """Copy a skeleton; objects held by all lanes are not copied."""
        return clone_member(skeleton, self.shared)

    @property
    def moves(self) -> bool:
        """Whether members, or an overridden `train`, may change their Python state."""
        return self.separated or self.has_own_train()

    def train(self, mode: bool, path: str = "") -> None:
        """Call the `train` of the members, or of their submodule at `path`; it may do more than set flags."""
        self.switch(lambda module: module.train(mode), path)

    def switch(self, call: Callable[[nn.Module], Any], path: str = "") -> None:
        """Call `train` or `eval` of the members, or of their submodule at `path`."""
        modules = [variant.get_submodule(path) for variant in self.variants]
        for module in modules:
            call(module)
        if self.has_own_train(path):
            self.note_move()

    def computes(self, call: Callable[[nn.Module], Any], path: str = "") -> bool:
        """Return whether `call`, to `train` or `eval` at `path`, touches tensors."""
        if not self.has_own_train(path):
            return False
        return any(computes(self.copied(variant), call, path) for variant in self.variants)

    def has_own_train(self, path: str = "") -> bool:
        return any(map(_has_own_train, self.variants[0].get_submodule(path).modules()))

    def replace(self, other: "Skeletons") -> None:
        """Take over the skeletons of `other`, made of the same lanes."""
        self.variants, self.variant_of_lane = other.variants, other.variant_of_lane
        self.separated, self.shared = other.separated, other.shared
        self.note_move()

    def note_move(self) -> None:
        """The members' Python may have changed what they hold."""
        self.moved = next(_NUMBERS)

    def each(self) -> tuple[nn.Module, ...]:
        return tuple(self.variants[v] for v in self.variant_of_lane)

    def lane(self, lane: int) -> nn.Module:
        return self.variants[self.variant_of_lane[lane]]

    def set_training(self, flags: Iterator[tuple[str, bool]]) -> None:
        for path, training in flags:
            for skeleton in self.variants:
                skeleton.get_submodule(path).training = training


def _has_own_train(module: nn.Module) -> bool:
    own = type(module).train is not nn.Module.train or type(module).eval is not nn.Module.eval
    return own or not vars(module).keys().isdisjoint(("train", "eval"))


def _reversed(copy: nn.Module, originals: dict[int, Any]) -> dict[int, Any]:
    """Return the id of each original object -> its copy."""
    found: dict[int, Any] = {}
    for module in copy.modules():
        for value in (module, vars(module), *vars(module).values()):
            original = originals.get(id(value))
            if original is not None:
                found[id(original)] = value
    return found
