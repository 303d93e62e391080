"""The same call once more: a small model on a GPU runs in less time than one needs to look at arguments."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from ..guards.modes import launch_state
from ..guards.tensors import TensorGuard
from ..replay import Replay

CHANGED = object()


class ReplayedCall:
    """The latest replayed call of a wide model, with all that it depends on.

    `replay` compares everything in a few microseconds, and gives the call's result, or CHANGED if anything
    is not as it was: then the call takes the long way, which finds out what.
    """

    def __init__(self, model: Any, route: Any, replay: Replay, args: tuple[Tensor, ...], door: Any):
        assert replay.latest is not None
        self.model, self.door = model, door
        self.scopes = model.scopes
        self.flags = [scope.training for scope in self.scopes]
        self.homes = [(home, name) for _, home, name, _ in route.binding.states]
        self.count = len(args)
        self.holds = TensorGuard([*args, *(home[name] for home, name in self.homes)]).holds
        self.state, self.moved = launch_state(), model.skeletons.moved
        self.recording: Any = replay.latest
        # Of the packed door hooks have run already.
        self.hooks: Any = () if door == "packed" else hook_tables(model)
        self.lock, self.rests_on = replay.lock, route.program.captured.rests_on
        self.writes = bool(route.program.graph.writes)
        # Several results, or none, are put together as the model's own result is.
        self.rebuild = None if route.program.captured.gives_one_tensor else route.program.rebuild

    @staticmethod
    def of(model: Any, route: Any, args: tuple[Tensor, ...], door: Any) -> "ReplayedCall | None":
        """What was just replayed, if the very tensors that were given were read and own memory was lent."""
        replay = route.way
        if not isinstance(replay, Replay) or not replay.has_lent:
            return None
        if route.binding.modules or route.program.graph.enters_autocast or model.held.lanes is not None:
            return None
        if any(home.get(name) is None for _, home, name, _ in route.binding.states):
            return None  # computed anew in each call
        if torch._C._is_any_autocast_enabled():  # to which dtype shows nowhere else
            return None
        return ReplayedCall(model, route, replay, args, door)

    def replay(self, args: tuple[Any, ...], door: Any) -> Any:
        """The result, or CHANGED."""
        for x in args:
            if type(x) is not Tensor or x.is_nested:  # the guard cannot look at a nested tensor
                return CHANGED
        # What surrounds the call (autocast, vmap, inference mode, ...) shows in how the tensors dispatch.
        if (
            door == self.door
            and len(args) == self.count
            and self.holds([*args, *[home.get(name) for home, name in self.homes]])
            and launch_state() == self.state
            and [scope.training for scope in self.scopes] == self.flags
            and self.model.seeds.seeds is None
            and not any(self.hooks)
            and self.model.skeletons.moved == self.moved
        ):
            with self.lock:
                recording = self.recording.unheld()
                if recording is not None and (not self.writes or self.rests_on.holds()):
                    recording.launch()
                    # Asked while the GPU works: what it wrote is handed out only if all still holds.
                    if self.rests_on.holds():
                        return recording.first() if self.rebuild is None else self.rebuild(recording.lend())
        return CHANGED


def hook_tables(model: nn.Module) -> tuple[Any, ...]:
    """The hooks of this module, and those of all modules."""
    return (
        model._forward_hooks,
        model._forward_pre_hooks,
        model._backward_hooks,
        model._backward_pre_hooks,
        module_hooks._global_forward_hooks,
        module_hooks._global_forward_pre_hooks,
        module_hooks._global_backward_hooks,
        module_hooks._global_backward_pre_hooks,
    )
