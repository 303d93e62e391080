"""LaneStore: the state of N members as one module."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..capture import CaptureFailed, canonical_names, check_models, materialize, slots
from ..errors import AlignmentError, InputError, LaneIndexError, UnsupportedError
from ..remote_tensors import to_local
from . import saving
from .marks import has_lanes, mark_parameters
from .members import Skeletons, build_tree, hooks_lost
from .own_train import change_lanes
from .plan_builder import channels_last
from .registered import Registered, stacked_tensor
from .select_rows import select_rows
from .submodules import Children, Place, Scope, find_ties
from .views import Views


class LaneStore(Children, nn.Module):
    """Parameters and buffers under the members' names, stacked to `[N, ...]`.

    Tensors that are one object in all lanes (a shared trunk), and constant buffers equal in all lanes, have
    no lane axis.
    """

    living = None  # the original modules, if they stay in use; here they were copied

    def __init__(self, models: Sequence[nn.Module]):
        super().__init__()
        if not models:
            raise AlignmentError("no models: compile needs at least one model, or one model and n=")
        check_models(models)
        with torch.inference_mode(False):
            self._take_apart(models)

    def holds_once(self, tensor: Tensor) -> bool:
        """Return whether a member's tensor has no lane axis, also where there is one lane only."""
        return False

    def _take_apart(self, models: Sequence[nn.Module]) -> None:
        self.n = len(models)
        self.training = models[0].training
        self.registered = Registered(models)
        built = self.registered.build(models)
        self.places, self.wide_states, self.one_object = build_tree(self, models, set(built), self.holds_once)
        # Frozen parameters of a shared trunk: in the original models' memory until something writes them.
        trunk = [p for p in self.places if p.kind == "parameter" and p.path in self.one_object]
        self.borrowed = [place for place in trunk if not place.tensor.requires_grad]
        for path, module in built.items():
            parent, _, name = path.rpartition(".")
            self.get_submodule(parent)._modules[name] = module
        self.scopes = list(self.modules())  # a fixed list: every call reads their train flags
        self.own_paths = {p for p, _ in self.named_modules() if self.registered.outer(p) is None}
        self.skeletons = Skeletons.of(models)
        self.ragged: set[str] = set()  # plain tensors that members have set to tensors of different kinds
        find_ties(self.scopes)
        for path, scope in self.named_modules():
            if isinstance(scope, Scope):
                scope.belongs_to(self.skeletons, path)
        self.views = Views((), self.places, self.wide_states)
        self.uncapturable = hooks_lost(models, forward=False)
        mark_parameters(self)

    def train(self, mode: bool = True) -> "LaneStore":
        """Set the train flags by the members' own `train`, which may for example keep a norm frozen.

        It is called for every lane with its own Python state, since it may also drop values cached from
        weights.
        """
        return self._switch(lambda member: member.train(mode), mode)

    def eval(self) -> "LaneStore":
        """As `train(False)`, by the members' own `eval` if they have one."""
        return self._switch(lambda member: member.eval(), False)

    def _switch(self, call: Callable[[nn.Module], Any], mode: bool) -> "LaneStore":
        if self.skeletons.computes(call):
            change_lanes(self, lambda member, _: call(member))
        else:
            self.skeletons.switch(call)
        skeleton = self.skeletons.lane(0)
        for path, module in self.named_modules():
            outer = self.registered.outer(path)
            if path in self.own_paths:
                module.training = skeleton.get_submodule(path).training
            elif outer == path:
                module.train(skeleton.get_submodule(path).training)
            elif outer is None:  # added by a user, such as a parametrization
                module.training = mode
        return self

    def separate_members(self) -> None:
        """Give each lane its own Python state, plain tensors and buffers, before members run as Python."""
        self._separate_python()
        for place in self.places:
            if place.kind == "buffer" and place.path not in self.wide_states | self.one_object:
                self.promote(place.path)

    def _separate_python(self) -> list[dict[int, Any]]:
        return self.skeletons.separate(lambda lane, path: self.lane_state(lane, path).clone())

    def __setattr__(self, name: str, value: Any) -> None:
        # Bypass nn.Module: a member may have a parameter or child named like an attribute of this class.
        own = name in vars(self) or "ready" not in vars(self)
        if isinstance(value, (Tensor, nn.Module)) or (not own and name in self._modules):
            if not self._replaces(name, value):
                super().__setattr__(name, value)
        else:
            object.__setattr__(self, name, value)

    def get_submodule(self, target: str) -> nn.Module:
        """As in `nn.Module`, also where a child is named like an attribute of this class."""
        first, _, rest = target.partition(".")
        child = self._modules.get(first)
        return super().get_submodule(target) if child is None else child.get_submodule(rest)

    def get_parameter(self, target: str) -> nn.Parameter:
        """As in `nn.Module`, also where a parameter is named like an attribute of this class."""
        own = self._parameters.get(target)
        return super().get_parameter(target) if own is None else own

    def get_buffer(self, target: str) -> Tensor:
        """As in `nn.Module`, also where a buffer is named like an attribute of this class."""
        own = self._buffers.get(target)
        return super().get_buffer(target) if own is None else own

    def tensors(self) -> dict[str, Tensor]:
        """Return canonical path in the member -> tensor, `[N, ...]` unless shared."""
        return {place.path: place.tensor for place in self.places}

    def plain_tensors(self) -> list[tuple[Any, Tensor]]:
        """Return (place, tensor) of what is neither a parameter nor a buffer in the members."""
        paths = _constants(self.skeletons.lane(0))
        return [(place, place.tensor) for place in self.places if place.path in paths]

    def lane(self, lane: int) -> nn.Module:
        """Return an ordinary model with a copy of one lane's weights."""
        self._check_lane(lane)
        return self._with_flags(self._materialize(lane, self.lane_state))

    def lanes(self) -> Iterator[nn.Module]:
        """Yield every lane as an ordinary model."""
        return (self.lane(i) for i in range(self.n))

    def load_lane(self, lane: int, state: Mapping[str, Tensor] | nn.Module) -> None:
        """Load a member's weights (a state_dict or a model) into one lane."""
        self._check_lane(lane)
        saving.load_lane(self, lane, state.state_dict() if isinstance(state, nn.Module) else state)

    def lane_state(self, lane: int, path: str) -> Tensor:
        """Return one lane's tensor by the member's path; a view if there is a lane axis."""
        outer = self.registered.outer(path)
        if outer is not None:
            return stacked_tensor(self.get_submodule(outer), outer, path, self.n).detach()[lane]
        place = self._place(path)
        assert place is not None, f"no tensor at {path}"
        tensor = place.tensor.detach()
        return tensor[lane] if path in self.wide_states else tensor

    def reshape_states(self, found: Mapping[str, Mapping[int, Tensor]]) -> None:
        """Take over buffers and plain tensors to which members' forward has given another shape or dtype.

        `found` has them by path and lane. Where lanes do not agree, a buffer is an error, and a plain tensor
        stays with the members, which then run as Python.
        """
        for path, lanes in found.items():
            place = self._place(path)
            kinds = {(tuple(t.shape), t.dtype) for t in lanes.values()}
            owner, _, name = path.rpartition(".")
            buffers = [skeleton.get_submodule(owner)._buffers for skeleton in self.skeletons.variants]
            if place is None or len(lanes) < self.n or len(kinds) > 1:
                if name in buffers[0]:
                    raise UnsupportedError(
                        f"the forward turns the buffer {path} into tensors of different shapes or dtypes in "
                        f"different lanes, {kinds}; a stacked buffer has one: keep one shape and dtype in all"
                    )
                self.ragged.add(path)
                continue
            with torch.no_grad(), torch.inference_mode(False):
                place.home[place.name] = torch.stack([lanes[lane].detach() for lane in range(self.n)])
            self.ragged.discard(path)
            for stubs in [stubs for stubs in buffers if name in stubs]:
                stubs[name] = torch.empty_like(lanes[0], device="meta")
        self._forget()

    def take_buffers(self, found: Mapping[str, Mapping[int, Tensor]]) -> None:
        """Take over buffers that the members' forward has made, by path and lane.

        From then on they are stacked, in `state_dict()`, and read by graphs like any other buffer.
        """
        for path, lanes in found.items():
            owner, _, name = path.rpartition(".")
            kinds = {(tuple(t.shape), t.dtype) for t in lanes.values()}
            if len(lanes) < self.n or len(kinds) > 1:
                raise UnsupportedError(
                    f"the forward makes the buffer {path} in {len(lanes)} of {self.n} lanes, as {kinds}; "
                    f"a stacked buffer has one shape and dtype in all: make it in the constructor"
                )
            scope, members = (
                self.get_submodule(owner),
                [m.get_submodule(owner) for m in self.skeletons.variants],
            )
            with torch.no_grad(), torch.inference_mode(False):
                scope._buffers[name] = torch.stack([lanes[lane].detach() for lane in range(self.n)])
            if name in members[0]._non_persistent_buffers_set:
                scope._non_persistent_buffers_set.add(name)
            for member, stub in zip(members, lanes.values(), strict=True):
                member._buffers[name] = torch.empty_like(stub, device="meta")
            self.places.append(Place(path, scope, name, "buffer"))
            self.wide_states.add(path)
        self._forget_programs()

    def _forget_programs(self) -> None:
        """Nothing was built yet, which knows the tensors there were."""

    def _forget(self) -> None:
        """Nothing was built yet of which this could be told."""

    def _place(self, path: str) -> Place | None:
        return next((place for place in self.places if place.path == path), None)

    def capture_state(self, lane: int, path: str) -> Tensor:
        """Return a tensor to capture with."""
        if self.registered.outer(path) is not None:
            return self.registered.example_tensor(path)
        if self._place(path) is None or path in self.ragged:
            raise CaptureFailed(
                f"{path} is a tensor made by a member's forward, and would be a constant in a graph"
            )
        return to_local(self.lane_state(lane, path))

    def example_member(self, lane: int = 0) -> nn.Module:
        """Return an ordinary model for trying inputs."""
        return self._with_flags(self._materialize(lane, self.capture_state))

    def _materialize(self, lane: int, state: Callable[[int, str], Tensor]) -> nn.Module:
        skeleton = self.skeletons.lane(lane)
        own = {path: tensor for path, tensor in _constants(skeleton).items() if tensor.device.type != "meta"}

        def tensor_of(path: str) -> Tensor:
            return (own[path] if path in own else state(lane, path)).clone()

        return materialize(skeleton, tensor_of, self.skeletons.shared)

    def _with_flags(self, member: nn.Module) -> nn.Module:
        for path, training in self.own_training():
            member.get_submodule(path).training = training
        return member

    def own_training(self) -> Iterator[tuple[str, bool]]:
        """Yield (path, train flag) of every module outside registered ones."""
        for path, module in self.named_modules():
            if path in self.own_paths:
                yield path, module.training

    def promote(self, path: str) -> None:
        """Add a lane axis to a shared buffer, because lanes begin to differ. Raise for a parameter."""
        place = next(p for p in self.places if p.path == path)
        if place.kind == "parameter":
            raise InputError(
                f"{path} is one parameter for all lanes (a shared trunk) and cannot differ by lane; "
                f"give each model a copy of its own before compiling"
            )
        old = place.tensor
        with torch.inference_mode(False):
            wide = old.clone().unsqueeze(0).repeat(self.n, *([1] * old.dim()))
        for module in self.modules():
            for name, buffer in module._buffers.items():
                if buffer is old:
                    module._buffers[name] = wide
        self.wide_states.add(path)
        self.views.relink(self.places, self.wide_states)

    def give_own_memory(self, place: Place) -> None:
        """Copy a parameter that is about to be written, if its memory still is the original models'."""
        if place in self.borrowed:
            self.borrowed.remove(place)
            if not self.views.models and place.home.get(place.name) is not None:
                place.tensor.data = place.tensor.data.clone()

    def put_channels_last(self, path: str) -> None:
        """Store a convolution's weight with channels last in memory."""
        place = next(p for p in self.places if p.path == path)
        place.tensor.data = channels_last(place.tensor.data)
        self.views.relink(self.places, self.wide_states)

    def save(self, path: Any, lane: int | None = None) -> None:
        """Write all lanes, or one lane as an ordinary model's state, as safetensors."""
        saving.save(self, path, lane)

    def load(self, path: Any, lane: int | None = None) -> None:
        """Read a file of `save`: all lanes, or an ordinary model's state into one lane."""
        saving.load(self, path, lane)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        saving.save_extra_states(self, destination, prefix)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        saving.fit_lane_axes(self, state_dict, prefix)
        saving.load_extra_states(self, state_dict, prefix, *args)
        for place in list(self.borrowed):
            self.give_own_memory(place)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As in `nn.Module`. Members whose tensors are views follow, also with `assign=True`."""
        try:
            return super().load_state_dict(*args, **kwargs)
        finally:
            if self.views.models:
                self.views.relink(self.places, self.wide_states)

    def select_tensors(self, lanes: Sequence[int]) -> None:
        """Make new lane i of every tensor old lane `lanes[i]`; tensor objects stay the same."""
        if self.registered.builders and len(lanes) != self.n:
            path = next(iter(self.registered.builders))
            raise InputError(
                f"{path} is a registered wide module, whose number of lanes cannot change; compile the lanes "
                f"that you want instead"
            )
        for place in self.places:
            place.check_stored("select_lanes")
        self.views.select(lanes)
        with torch.no_grad(), torch.inference_mode(False):
            select_rows(self.stacked_tensors(), lanes)
        self.n = len(lanes)
        self.skeletons.select(lanes)
        self.views.relink(self.places, self.wide_states)
        mark_parameters(self)

    def stacked_tensors(self) -> list[Tensor]:
        """Return every tensor with a lane axis."""
        own = [place.tensor for place in self.places if place.path in self.wide_states]
        for path in self.registered.builders:
            own += self.registered.stacked_tensors(self.get_submodule(path), path, self.n)
        return own

    def stacked_parameters(self) -> list[nn.Parameter]:
        """Return every parameter with a lane axis."""
        return [p for p in self.parameters() if has_lanes(p)]

    def has_lanes(self, path: str) -> bool:
        """Return whether a parameter is stacked `[N, ...]` rather than shared by all lanes."""
        return has_lanes(self.get_parameter(path))

    def _lane_number(self, lane: Any) -> int:
        number = operator.index(lane)
        self._check_lane(number)
        return number % self.n

    def _check_lane(self, lane: int) -> None:
        if not isinstance(lane, int) or not -self.n <= lane < self.n:
            raise LaneIndexError(f"lane {lane} is out of range for {self.n} lanes")


def _constants(skeleton: nn.Module) -> dict[str, Tensor]:
    """Return plain tensor attributes by canonical path; stubs unless the lane has its own."""
    names = canonical_names(skeleton)
    return {names[slot.path]: slot.tensor for slot in slots(skeleton) if slot.kind == "constant"}
