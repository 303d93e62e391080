"""Fast path for repeating a call: a small GPU model runs faster than arguments can be inspected."""

from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from ..guards.modes import launch_state
from ..guards.tensors import TensorGuard
from ..replay import Replay

CHANGED = object()


class ReplayedCall:
    """The last replayed call of a wide model, with everything it depends on.

    `replay` compares everything in a few microseconds. It returns the result, or CHANGED if anything differs;
    then the call takes the normal path. Inputs may be at any address if the recording copies them.
    """

    def __init__(self, model: Any, route: Any, replay: Replay, args: tuple[Tensor, ...], door: Any):
        self.model, self.door = model, door
        self.scopes = model.scopes
        self.flags = [scope.training for scope in self.scopes]
        self.homes = [(home, name) for _, home, name, _ in route.binding.states]
        self.count, self.state, self.moved = len(args), launch_state(), model.skeletons.moved
        assert replay.lender is not None
        self.recording = replay.lender
        places = dict(route.binding.inputs)
        self.copied = [places[i] for i in replay.inputs] if self.recording.buffers else []
        tensors = [*args, *(home[name] for home, name in self.homes)]
        self.holds = TensorGuard(tensors, anywhere=len(args) if self.copied else 0).holds
        # Hooks of a packed call have already run.
        self.hooks: Any = () if door == "packed" else hook_tables(model)
        self.lock, self.rests_on = replay.lock, route.program.captured.rests_on
        self.writes = bool(route.program.graph.writes)
        # A single tensor is returned directly; other results are rebuilt to the model's output structure.
        self.rebuild = None if route.program.captured.gives_one_tensor else route.program.rebuild

    @staticmethod
    def of(model: Any, route: Any, args: tuple[Tensor, ...], door: Any) -> "ReplayedCall | None":
        """Return the fast path for the call just replayed, if its outputs are lent; else None."""
        replay = route.way
        if not isinstance(replay, Replay) or replay.lender is None:
            return None
        frozen = model.frozen_lanes.lanes is not None
        if frozen or route.binding.modules or route.program.graph.enters_autocast:
            return None
        if any(home.get(name) is None for _, home, name, _ in route.binding.states):
            return None  # computed at each call
        if replay.lender.buffers and (route.writes or model.seeds.seeds is not None):
            return None  # writes depend on input addresses; seeds are inputs
        return ReplayedCall(model, route, replay, args, door)

    def replay(self, args: tuple[Any, ...], door: Any) -> Any:
        """Return the result, or CHANGED."""
        for x in args:
            if type(x) is not Tensor or x.is_nested:  # the guard does not support nested tensors
                return CHANGED
        if door != self.door or len(args) != self.count:
            return CHANGED
        # Transforms and modes around the call (vmap, inference mode, ...) change the tensors' dispatch keys.
        if (
            self.holds([*args, *[home.get(name) for home, name in self.homes]])
            and launch_state() == self.state
            and [scope.training for scope in self.scopes] == self.flags
            and self.model.seeds.seeds is None
            and not any(self.hooks)
            and self.model.skeletons.moved == self.moved
        ):
            with self.lock:
                recording = self.recording.unheld()
                if recording is not None and (not self.writes or self.rests_on.holds()):
                    if self.copied:
                        self.recording.take([args[i] for i in self.copied])
                    recording.launch()
                    # Checked while the GPU works; the result is returned only if the snapshot holds.
                    if self.rests_on.holds():
                        return recording.first() if self.rebuild is None else self.rebuild(recording.lend())
        return CHANGED


def hook_tables(model: nn.Module) -> tuple[Any, ...]:
    """Return the hook dictionaries of this module, and the global ones."""
    own = (model._forward_hooks, model._forward_pre_hooks, model._backward_hooks, model._backward_pre_hooks)
    return own + _GLOBAL_HOOKS


_KINDS = ("forward", "forward_pre", "backward", "backward_pre")
_GLOBAL_HOOKS = tuple(getattr(module_hooks, f"_global_{kind}_hooks") for kind in _KINDS)
