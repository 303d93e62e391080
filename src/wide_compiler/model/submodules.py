"""Submodules of a wide model: they hold the tensors of all lanes; user changes take effect or raise."""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from ..capture import group_by_variant
from ..errors import (
    AlignmentError,
    InputError,
    LaneIndexError,
    UnknownNameError,
    UnsupportedError,
    WrongTypeError,
)

# Pre-hooks that compute a tensor of their module from other tensors, whatever its inputs are.
_COMPUTING = (WeightNorm, SpectralNorm, BasePruningMethod)


class Children:
    """Attribute assignment in a wide model's tree: each takes effect or raises.

    A child of a wide model is a `Scope` and stays one; assigning a module to it replaces its tensors.
    """

    def _replaces(self, name: str, value: Any) -> bool:
        """Replace the tensors of a child scope by those of module `value`; return whether that was the case.

        A tensor assigned to a stacked one is checked, and assigned under all tied names.
        """
        scope = self.__dict__.get("_modules", {}).get(name)
        if isinstance(scope, Scope) and value is not scope:
            scope.take(name, value)
            return True
        homes = self.__dict__.get("_parameters", {}), self.__dict__.get("_buffers", {})
        home = next((home for home in homes if isinstance(home.get(name), Tensor)), None)
        if home is not None and isinstance(value, Tensor):
            if value.shape != home[name].shape:
                raise InputError(
                    f"{name} of the wide model is {tuple(home[name].shape)}, got {tuple(value.shape)}; lanes "
                    f"are stacked on axis 0, and wide.load_lane(i, state) sets one of them"
                )
            if isinstance(value, nn.Parameter) or home is homes[1]:
                tie(home[name], value, self.__dict__.get("_ties", ()))
        return False

    def add_module(self, name: str, module: nn.Module | None) -> None:
        if not self._replaces(name, module):
            super().add_module(name, module)  # type: ignore[misc]

    def register_module(self, name: str, module: nn.Module | None) -> None:
        self.add_module(name, module)

    def __delattr__(self, name: str) -> None:
        if isinstance(self.__dict__.get("_modules", {}).get(name), Scope):
            raise UnsupportedError(f"{name} is part of the members, not to be deleted; compile other members")
        super().__delattr__(name)

    def __getitem__(self, key: int | str) -> Any:
        """Return a child of a module that is a list, dict or sequence in the members."""
        return getattr(self, self._child(key))

    def __setitem__(self, key: int | str, value: Any) -> None:
        setattr(self, self._child(key), value)

    def _child(self, key: int | str) -> str:
        own: Any = self
        names = [*own._modules, *own._parameters]
        if isinstance(key, int) and -len(names) <= key < len(names):
            return names[key]
        if key in names:
            return str(key)
        if isinstance(key, int):
            raise LaneIndexError(f"module {key} is out of range for {len(names)}: {', '.join(names)}")
        raise UnknownNameError(f"there is no {key!r}; there are {', '.join(names)}")


class Scope(Children, nn.Module):
    """A module of the members in the wide model's tree: its stacked tensors, train flag and class."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.kind = type(module)
        self.training = module.training
        self._examples: Sequence[nn.Module] = ()  # this module in every variant of the members
        self._ties: Sequence[dict[str, Any]] = ()  # dictionaries with tied names of its tensors

    def __setattr__(self, name: str, value: Any) -> None:
        if not self._replaces(name, value):
            super().__setattr__(name, value)

    def belongs_to(self, skeletons: Any, path: str) -> None:
        """Set the skeletons this module belongs to, and its path in them."""
        self._examples = [variant.get_submodule(path) for variant in skeletons.variants]
        self.__dict__["_skeletons"], self.__dict__["_path"] = skeletons, path

    def train(self, mode: bool = True) -> "Scope":
        """Set train flags by the members' own `train` at this path, in all lanes with own Python state."""
        skeletons, place = self.__dict__["_skeletons"], self.__dict__["_path"]
        if skeletons.computes(lambda module: module.train(mode), place):
            raise UnsupportedError(
                f"{place}: the members' own train() computes with tensors; call train() or eval() on the "
                f"whole wide model, or on the members before they are compiled"
            )
        skeletons.train(mode, place)
        member = skeletons.lane(0).get_submodule(place)
        for path, module in self.named_modules():
            module.training = member.get_submodule(path).training
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise WrongTypeError(
            f"this {self.kind.__name__} holds the tensors of all lanes and is run by its wide model; "
            f"wide.lane(i) gives an ordinary model"
        )

    def take(self, name: str, module: Any) -> None:
        """Take over the tensors of a module assigned in place of this one. Raise if it differs otherwise."""
        remedy = "; set it in the members and compile them, or load tensors with load_state_dict"
        if not isinstance(module, nn.Module):
            raise UnsupportedError(f"{name} is part of the members and cannot become {module!r}{remedy}")
        for member in self._examples:
            if type(module) is not type(member) or not _alike(member, module):
                raise AlignmentError(
                    f"{name} is {_describe(member)} in the members and cannot become {_describe(module)}: "
                    f"the wide model runs the members' code{remedy}"
                )
        mine, others = _tensors(self), _tensors(module)
        if mine.keys() != others.keys():
            path = next(iter(mine.keys() ^ others.keys()))
            raise AlignmentError(f"{name}: {path!r} is only in one of the old module and the new{remedy}")
        for path, (_, tensor) in mine.items():
            other = others[path][1]
            if (other.shape, other.dtype, other.device) != (tensor.shape, tensor.dtype, tensor.device):
                raise InputError(
                    f"{name}.{path} of the wide model is {_look(tensor)}, the new one is {_look(other)}; "
                    f"lanes are stacked on axis 0, and wide.load_lane(i, state) sets one of them"
                )
        for path, (home, tensor) in mine.items():
            home[path.rpartition(".")[2]] = others[path][1]
            tie(tensor, others[path][1], self._ties)

    # Hooks are refused: the wide model runs one graph and never calls a member's module.

    def register_forward_pre_hook(self, hook: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(hook, _COMPUTING):
            self._refuse("forward pre-hook")
        return super().register_forward_pre_hook(hook, *args, **kwargs)

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("forward hook")

    def register_full_backward_hook(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("backward hook")

    register_backward_hook = register_full_backward_hook

    def register_full_backward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("backward pre-hook")

    def _refuse(self, kind: str) -> None:
        raise UnsupportedError(
            f"a {kind} on this {self.kind.__name__} would never run: its wide model runs all lanes as one "
            f"graph; register hooks on the members before they are compiled, or on the wide model itself"
        )

    def _get_name(self) -> str:
        return f"Wide[{self.kind.__name__}]"

    def extra_repr(self) -> str:
        own = {**self._parameters, **self._buffers}
        return ", ".join(f"{name}: {tuple(t.shape)}" for name, t in own.items() if t is not None)


def tie(old: Tensor, new: Tensor, homes: Sequence[dict[str, Any]]) -> None:
    """Replace `old` by `new` under every name in `homes`."""
    for other in homes:
        for name, tensor in other.items():
            if tensor is old:
                other[name] = new


def find_ties(scopes: Sequence[nn.Module]) -> None:
    """Set on each scope the dictionaries that contain tied tensors."""
    homes = [home for scope in scopes for home in (scope._parameters, scope._buffers)]
    names = Counter(id(t) for home in homes for t in home.values() if t is not None)
    tied = [home for home in homes if any(names[id(t)] > 1 for t in home.values() if t is not None)]
    for scope in scopes if tied else ():
        scope.__dict__["_ties"] = tied


def _alike(member: nn.Module, module: nn.Module) -> bool:
    """Return whether two modules are equal apart from tensors and train flags."""
    example = copy.deepcopy(member)
    for inner, other in zip(example.modules(), module.modules(), strict=False):
        inner.training = other.training
    return group_by_variant([example, module]) == [0, 0]


def _tensors(module: nn.Module) -> dict[str, tuple[dict[str, Any], Tensor]]:
    """Return every parameter and buffer: path -> (dictionary that holds it, tensor)."""
    found: dict[str, tuple[dict[str, Any], Tensor]] = {}
    for path, inner in module.named_modules(remove_duplicate=False):
        for home in (inner._parameters, inner._buffers):
            found |= {f"{path}.{k}".lstrip("."): (home, t) for k, t in home.items() if t is not None}
    return found


def _look(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"


def _describe(module: nn.Module) -> str:
    return " ".join(repr(module).split())[:80]


@dataclass
class Place:
    """Location of one canonical tensor in the wide model's tree."""

    path: str
    scope: nn.Module
    name: str
    kind: str  # 'parameter', 'buffer' or 'constant'

    @property
    def home(self) -> dict[str, Any]:
        return self.scope._parameters if self.kind == "parameter" else self.scope._buffers

    @property
    def tensor(self) -> Tensor:
        tensor = self.home.get(self.name)
        return tensor if tensor is not None else self.computed()

    def computed(self) -> Tensor:
        """Compute a tensor that is not stored, by its parametrization or pre-hook."""
        for hook in self.scope._forward_pre_hooks.values():
            if isinstance(hook, _COMPUTING):
                hook(self.scope, ())
        tensor = getattr(self.scope, self.name, None)
        if not isinstance(tensor, Tensor):
            raise AlignmentError(f"{self.path}: the members' code reads a tensor, got {tensor!r}")
        return tensor

    def check_stored(self, what: str) -> None:
        if self.home.get(self.name) is None:
            raise UnsupportedError(
                f"{what}: {self.path} is computed from other tensors; make it a parameter again first, as "
                f"with torch.nn.utils.parametrize.remove_parametrizations"
            )
