"""Saving and restoring the complete state of a training run."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..measure.store import hold_answers, used_answers
from ..model import WideModel
from .data import Shared
from .history import History

_POSITION = ("step", "epoch", "position", "epoch_began", "epoch_random")


def run_state(loop: Any) -> dict[str, Any]:
    plan, scaler = loop.plan, loop.take_step.scaler
    return {
        "lanes": loop.wide.n,
        "model": model_tensors(loop.wide),
        "optimizer": {"kind": type(loop.optimizer).__name__, "state": loop.optimizer.state_dict()},
        "scheduler": None if plan.scheduler is None else plan.scheduler.state_dict(),
        "scaler": None if scaler is None else scaler.state(),
        "accumulate": plan.accumulate,
        "active": loop.lanes.active,
        "best": loop.best.state(),
        "history": loop.history.state(),
        **{name: getattr(loop, name) for name in _POSITION},
        "random": loop._random_state(),
        "measured": used_answers(),
        "callbacks": [c.state_dict() for c in plan.callbacks if hasattr(c, "state_dict")],
    }


def restore_run(loop: Any, state: Mapping[str, Any], where: str) -> None:
    """Restore `loop` from a checkpoint. Raise `CheckpointError` before any change if it does not fit."""
    plan, scaler = loop.plan, loop.take_step.scaler
    if "model" not in state or "epoch_random" not in state:
        raise CheckpointError(f"{where} is not a checkpoint of fit: it holds {sorted(state)}")
    check_model(loop.wide, state["model"], state["lanes"], where)
    check_optimizer(loop.optimizer, state["optimizer"], where)
    stateful = [callback for callback in plan.callbacks if hasattr(callback, "load_state_dict")]
    for what, saved, given in (
        ("a scheduler", state["scheduler"] is not None, plan.scheduler is not None),
        ("precision='fp16'", state["scaler"] is not None, scaler is not None),
        ("accumulate", state["accumulate"], plan.accumulate),
        ("callbacks with a state", len(state["callbacks"]), len(stateful)),
    ):
        if saved != given:
            raise CheckpointError(f"{where}: {what} was {saved} when it was saved, now it is {given}")
    load_model(loop.wide, state["model"])
    loop.optimizer.load_state_dict(_on_their_devices(loop.optimizer, state["optimizer"]["state"]))
    active = state["active"]
    loop.lanes.unmask(active.nonzero().flatten().tolist())
    loop.lanes.mask((~active).nonzero().flatten().tolist())
    if plan.scheduler is not None:
        plan.scheduler.load_state_dict(state["scheduler"])
    if scaler is not None:
        scaler.load(state["scaler"])
    for callback, saved in zip(stateful, state["callbacks"], strict=True):
        callback.load_state_dict(saved)
    loop.best.load(state["best"], loop.wide._device())
    loop.history = History.of_state(state["history"])
    for name in _POSITION:
        setattr(loop, name, state[name])
    if loop.history.validated_at:
        loop.metrics = {name: values[-1] for name, values in loop.history.metrics.items()}
    loop._set_random_state(state["random"])
    hold_answers(state.get("measured", {}))


def model_tensors(wide: WideModel) -> dict[str, Tensor]:
    """Return parameters and buffers by path, tied ones once, including non-persistent buffers."""
    return {**dict(wide.named_parameters()), **dict(wide.named_buffers())}


def lane_tensors(wide: WideModel) -> dict[str, Tensor]:
    """Return the parameters and buffers with a lane axis, by path."""
    stacked = {id(tensor) for tensor in wide.stacked_tensors()}
    return {path: tensor for path, tensor in model_tensors(wide).items() if id(tensor) in stacked}


def check_model(wide: WideModel, saved: Mapping[str, Tensor], lanes: int, where: str) -> None:
    """Raise `CheckpointError` with the first difference in architecture."""
    if lanes != wide.n:
        raise CheckpointError(f"{where} is of {lanes} lanes, this wide model has {wide.n}; compile {lanes}")
    expected = model_tensors(wide)
    buffers = dict(wide.named_buffers())
    for path, tensor in expected.items():
        if path not in saved:
            raise CheckpointError(
                f"{where} is of another architecture: it lacks {path}, {_look(tensor)} here"
            )
        other = saved[path]
        lanes_begun = path in buffers and _without_lanes(other, wide.n, tensor) == tensor.shape
        if other.dtype != tensor.dtype or (other.shape != tensor.shape and not lanes_begun):
            raise CheckpointError(
                f"{where} is of another architecture: {path} is {_look(other)} there, {_look(tensor)} here"
            )
    extra = [path for path in saved if path not in expected]
    if extra:
        raise CheckpointError(
            f"{where} is of another architecture: it has {extra[0]}, {_look(saved[extra[0]])}, not here"
        )


def _without_lanes(saved: Tensor, n: int, now: Tensor) -> torch.Size:
    """Return the shape of a saved buffer, adding or dropping the lane axis if only `now` has or lacks it."""
    if saved.shape == (n, *now.shape):
        return saved.shape[1:]
    return torch.Size((n, *saved.shape)) if now.shape == (n, *saved.shape) else saved.shape


def load_model(wide: WideModel, saved: Mapping[str, Tensor]) -> None:
    for path, tensor in model_tensors(wide).items():
        if saved[path].shape == (wide.n, *tensor.shape):
            wide.promote(path)
    with torch.no_grad():
        for path, tensor in model_tensors(wide).items():
            if torch.equal(tensor.cpu(), saved[path]):
                continue  # a shared frozen tensor may be the original models' memory
            for place in [place for place in wide.borrowed if place.path == path]:
                wide.give_own_memory(place)
            tensor.copy_(saved[path].expand_as(tensor))


def _look(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def check_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], where: str) -> None:
    kind = type(optimizer).__name__
    if saved["kind"] != kind:
        raise CheckpointError(
            f"{where} was made with {saved['kind']}, this optimiser is {kind}; "
            f"pass the kind that it was made with"
        )
    sizes = [len(group["params"]) for group in saved["state"]["param_groups"]]
    now = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != now:
        raise CheckpointError(
            f"{where}: its optimiser has groups of {sizes} parameters, this one of {now}; make its groups as "
            f"they were"
        )


def _on_their_devices(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Move tensors among the saved hyper-parameters to the devices of the current ones."""
    pairs = zip(saved["param_groups"], optimizer.param_groups, strict=True)
    groups = [
        {k: _moved(v, now.get(k), now["params"][0].device) for k, v in old.items()} for old, now in pairs
    ]
    return {**saved, "param_groups": groups}


def _moved(value: Any, now: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        present = now if isinstance(now, tuple) else (None,) * len(value)
        return tuple(_moved(v, p, device) for v, p in zip(value, present, strict=True))
    if isinstance(value, Tensor):
        return value.to(now.device if isinstance(now, Tensor) else device)
    return value


def generator_states(data: Shared) -> list[Tensor]:
    return [generator.get_state() for generator in data.generators()]


def set_generator_states(data: Shared, states: list[Tensor]) -> None:
    generators = data.generators()
    if len(generators) != len(states):
        raise CheckpointError(
            f"the data has {len(generators)} generators of its own, it had {len(states)} when it was saved; "
            f"resume with the data that it was made with"
        )
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
