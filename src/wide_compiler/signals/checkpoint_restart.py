"""Saves all values on the workers to disk and restores them: `checkpoint(folder)`, `restart(folder)`.

Workers write their own shards with `torch.distributed.checkpoint`. Next to them are a list of the saved
tensors and the states of the objects given by the user, in which each tensor on workers is replaced by its
number in that list.
"""

from __future__ import annotations

import gc
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ..errors import ArgumentError, MissingFileError
from ..workers import templates
from ..workers.engine import Engine
from ..workers.layout import Axes
from ..workers.stream import Mesh
from . import runtime, scope, sending
from .op_plans import TensorMeta
from .tensor import Home, Ref, SignalTensor

_LIST, _OBJECTS = "signals.json", "objects.pt"


@dataclass(frozen=True)
class Saved:
    """Stands for a tensor on workers within a saved state."""

    number: int


def checkpoint(folder: str | Path, **objects: Any) -> None:
    """Save every tensor on the workers, and `state_dict()` of each object.

    Args:
        folder: directory to write, created if missing.
        objects: objects with a `state_dict` (modules, optimisers), by name.
    """
    engine = runtime.engine()
    engine.synchronize()
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    states = {name: thing.state_dict() for name, thing in objects.items()}
    kept = {h._ref.number: h for h in _live() if h._ref.engine is engine and not h._ref.view}
    numbers = sorted(kept)
    held: dict[int, Axes] = {}
    workers = {n: kept[n]._ref.home.mesh.workers for n in numbers}
    for answer in engine.ask_each("save", _contents(path, workers, engine)):
        held.update(answer)
    tensors = {
        n: {
            "workers": workers[n],
            "shape": kept[n]._tensor_meta.shape,
            "stride": kept[n]._tensor_meta.stride,
            "dtype": str(kept[n]._tensor_meta.dtype).removeprefix("torch."),
            "mesh": kept[n]._ref.home.mesh.shape,
            "axes": held[n],
        }
        for n in numbers
    }
    marked = tree_map_only(SignalTensor, lambda h: Saved(h._ref.number), states)
    torch.save((marked, torch.get_rng_state()), path / _OBJECTS)
    # Written last: a folder without it is not a checkpoint.
    (path / _LIST).write_text(json.dumps({"tensors": tensors}))


def restart(folder: str | Path | None = None, **objects: Any) -> None:
    """Start the workers again, as many as before, and restore what `checkpoint(folder)` saved.

    Handles of saved tensors become valid again, with the saved values. Tensors that are not in the checkpoint
    cannot be used any more.

    Args:
        folder: a checkpoint, or None to restart without one.
        objects: objects on which `load_state_dict` is called, by the names given to `checkpoint`.

    Raises:
        MissingFileError: `folder` holds no checkpoint.
        ArgumentError: no state was saved under a name in `objects`.
    """
    saved: dict[str, Any] = {"tensors": {}}
    path = Path(folder) if folder is not None else None
    if path is not None:
        if not (path / _LIST).is_file():
            raise MissingFileError(f"{path.absolute()} holds no checkpoint ({_LIST} is missing)")
        saved = json.loads((path / _LIST).read_text())
    old = runtime.running()
    live = [h for h in _live() if old is not None and h._ref.engine is old and not h._ref.view]
    start = runtime.last_start() if old is not None else None
    runtime.shutdown()
    if start is not None:
        runtime.start_workers(start)
    engine = runtime.engine()
    scope.forget_ranges()
    sending.forget_all_copies()
    tensors = {int(n): entry for n, entry in saved["tensors"].items()}
    engine.ids = itertools.count(max([*tensors, next(old.ids) if old is not None else 1], default=0) + 1)
    for number, entry in tensors.items():
        _make_room(engine, number, entry)
    if path is not None:
        workers = {n: entry["workers"] for n, entry in tensors.items()}
        engine.ask_each("load", _contents(path, workers, engine))
    refs = _rebind(engine, live, tensors)
    if path is not None:
        _load_objects(path, objects, refs, tensors)
    engine.synchronize()


def _contents(path: Path, workers: dict[int, Any], engine: Engine) -> list[tuple]:
    """For each worker the folder, and the names of the values that it holds."""
    own = [{n: f"t{n}" for n, at in workers.items() if worker in at} for worker in engine.everyone]
    return [(str(path.absolute()), names) for names in own]


def _make_room(engine: Engine, number: int, entry: dict[str, Any]) -> None:
    mesh = _mesh_of(engine, entry)
    constants = tuple(templates.constant(a) for a in (entry["shape"], entry["stride"]))
    dtype = {"dtype": (templates.NAMED, entry["dtype"]), "device": templates.constant(torch.device("cpu"))}
    template = engine.new_template("aten.empty_strided.default", constants, dtype)
    content = (number, template, mesh.number, tuple(entry["axes"]), None)
    engine.record("make", content, mesh.workers, "restore")
    engine.forget_template(template)


def _mesh_of(engine: Engine, entry: dict[str, Any]) -> Mesh:
    return engine.mesh(entry["workers"], tuple(entry["mesh"]))


def _rebind(engine: Engine, live: list[SignalTensor], tensors: dict[int, Any]) -> dict[int, Ref]:
    """Bind handles of saved tensors to the new engine; returns the reference of each saved tensor."""
    refs: dict[int, Ref] = {}
    for handle in live:
        ref = handle._ref
        if ref.number in tensors:
            ref.engine = engine
            ref.home.mesh = _mesh_of(engine, tensors[ref.number])
            refs[ref.number] = ref
    for number, entry in tensors.items():
        if number not in refs:  # part of an object's state; otherwise freed, since nothing refers to it
            refs[number] = Ref(engine, number, Home(_mesh_of(engine, entry)))
    return refs


def _load_objects(path: Path, objects: dict[str, Any], refs: dict[int, Ref], tensors: dict[int, Any]) -> None:
    states, random = torch.load(path / _OBJECTS, weights_only=False)
    torch.set_rng_state(random)
    missing = sorted(set(objects) - set(states))
    if missing:
        raise ArgumentError(f"{path}: no state of {missing[0]!r} was saved; saved are {sorted(states)}")

    def handle(saved: Saved) -> SignalTensor:
        entry = tensors[saved.number]
        meta = TensorMeta(tuple(entry["shape"]), tuple(entry["stride"]), getattr(torch, entry["dtype"]))
        return SignalTensor(refs[saved.number], meta)

    for name, thing in objects.items():
        thing.load_state_dict(tree_map_only(Saved, handle, states[name]))


def _live() -> list[SignalTensor]:
    return [x for x in gc.get_objects() if type(x) is SignalTensor]
