"""`@step`: a repeated training step is recorded once and then sent as one instruction.

The function runs as written whenever something it depends on has changed: numbers, shapes, modes, hooks,
modules, settings of optimisers other than floats. `why` is the reason if it cannot be replayed.
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..guards.reads import ATOMS
from ..workers.engine import Engine
from ..workers.script_state import draw_seed
from ..workers.worker_steps import DRAW, DRAWS, FIELDS, MADE, USED, Definition, places_of, with_ids
from . import modules, runtime, sending
from .step_guard import StepGuard
from .step_observer import StepObserver
from .step_optimizers import NotRepeatable, OptimizerState, optimizer_windows
from .tensor import Home, Ref, SignalTensor, handle

_KEPT = 4  # recordings per step
_numbers = itertools.count(1)


def step(function: Callable[..., Any]) -> Step:
    """Decorate a training step (forward, backward, update) to be replayed as one instruction.

    It is replayed while everything it depends on is unchanged. The function must return tensors, numbers, or
    lists and dicts of them. Returns a `Step`.
    """
    return Step(function)


class Step:
    """A decorated training step.

    Attributes:
        replayed: number of calls sent as one instruction.
        recorded: number of calls recorded.
        why: why the last attempt to record failed, else "".
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.recordings: list[Recording] = []
        self.replayed = self.recorded = 0
        self.why = ""
        self._wait, self._patience = 1, 1  # plain calls before the next attempt; doubled after each failure
        self._places: dict[int, tuple] = {}  # mesh and axes of plain tensors among the arguments
        self._modules: dict[int, nn.Module] = {}  # called in earlier calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree_flatten((args, kwargs)) if kwargs or not _flat(args) else (list(args), None)
        for i, (mesh, axes) in self._places.items():
            if i < len(leaves) and type(leaves[i]) is Tensor and not runtime.engine().closed:
                leaves[i] = sending.put_on(leaves[i], mesh, axes)
        for place, recording in enumerate(self.recordings):
            if recording.guard.holds(leaves, structure):
                if place:
                    self.recordings.insert(0, self.recordings.pop(place))
                self.replayed += 1
                return recording.replay(leaves)
        if self._places:
            args, kwargs = (tuple(leaves), {}) if structure is None else tree_unflatten(leaves, structure)
        if self._wait > 0:
            self._wait -= 1
            return self._plain(args, kwargs, leaves)
        return self._record(args, kwargs, leaves, structure)

    def _plain(self, args: tuple, kwargs: dict, leaves: list) -> Any:
        """Run the function as written, and note where plain arguments are sent."""
        plain = {(x.data_ptr(), x.shape): i for i, x in enumerate(leaves) if type(x) is Tensor and x.numel()}

        def sent(x: Tensor, mesh: Any, axes: Any, made: Any) -> None:
            place = plain.get((x.data_ptr(), x.shape))
            if place is not None:
                self._places.setdefault(place, (mesh, axes))

        with sending.listener(sent if plain else None), modules.listener(self._called):
            return self.function(*args, **kwargs)

    def _called(self, module: nn.Module) -> None:
        self._modules[id(module)] = module

    def _record(self, args: tuple, kwargs: dict, leaves: list, structure: Any) -> Any:
        if self.recordings and not self.recordings[0].replays:
            self._patience = min(self._patience * 2, 1024)
        recorder = StepRecorder(runtime.engine(), self._modules)
        result = recorder.run(self.function, args, kwargs)
        try:
            recording = Recording(recorder, self.function, leaves, structure, result)
        except NotRepeatable as reason:
            self.why = str(reason)
            self._wait = self._patience = min(self._patience * 2, 1024)
            return result
        self.recorded += 1
        self.why, self._wait = "", self._patience - 1
        self.recordings.insert(0, recording)
        for old in self.recordings[_KEPT:]:
            old.forget()
        del self.recordings[_KEPT:]
        return result


def _flat(args: tuple) -> bool:
    return all(isinstance(a, (Tensor, *ATOMS)) for a in args)


class StepRecorder:
    """Records the instructions of one call, the modules it calls, and its optimisers."""

    def __init__(self, engine: Engine, known: dict[int, nn.Module]) -> None:
        self.engine = engine
        self.known = known
        self.instructions: list[tuple[str, tuple, tuple[int, ...], str]] = []
        self.freed: set[int] = set()
        self.modules: dict[int, nn.Module] = {}
        self.optimizers: list[tuple[OptimizerState, int, int]] = []
        self.constants: list[SignalTensor] = []  # plain tensors made in the call and sent
        self.refused = ""
        self.observer: StepObserver | None = None
        self.random_state = torch.get_rng_state()
        self.before = {
            id(p): p.grad._ref.number if type(p.grad) is SignalTensor else None
            for module in known.values()
            for p in module._parameters.values()
            if p is not None
        }

    def hear(self, kind: str, content: tuple, workers: tuple[int, ...], what: str) -> None:
        if kind in FIELDS:
            self.instructions.append((kind, content, workers, what))
        elif kind not in ("template", "mesh", "define", "forget", "forget_regions", "put"):
            self.refused = self.refused or _REFUSED.get(
                kind, f"it contains an instruction that cannot be recorded ({kind})"
            )

    def _sent(self, x: Tensor, mesh: Any, axes: Any, made: SignalTensor) -> None:
        assert self.observer is not None
        if self.observer.is_constant(x):
            self.constants.append(made)
        else:
            self.refused = (
                self.refused
                or f"it sends a tensor of the script, of shape {tuple(x.shape)}, to the workers; "
                "pass it as an argument"
            )

    def run(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.optimizers.append((OptimizerState(optimizer), len(self.instructions), 0))

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.optimizers[-1] = (*self.optimizers[-1][:2], len(self.instructions))

        hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
        self.observer = StepObserver(function, self.known.values())
        self.engine.flush()
        self.engine.recorder = self
        try:
            with sending.listener(self._sent), modules.listener(self._called):
                return self.observer.watch(lambda: function(*args, **kwargs))
        finally:
            gc.collect()  # values held only by a cycle are not kept
            self.freed.update(number for _, number in self.engine.freed)
            self.engine.recorder = None
            for hook in hooks:
                hook.remove()

    def _called(self, module: nn.Module) -> None:
        assert self.observer is not None
        if id(module) not in self.modules:
            self.modules[id(module)] = self.known[id(module)] = module
            self.observer.meet(module)


_REFUSED = {
    "ask": "it waits for an answer that depends on values",
    "fetch": "it reads a value; return the tensor, and read it outside",
    "gather": "a parameter is being placed",
}


class Recording:
    """A recorded call as one instruction, with its guard."""

    def __init__(
        self, recorder: StepRecorder, function: Callable, leaves: list, structure: Any, result: Any
    ) -> None:
        assert recorder.observer is not None
        reason = recorder.refused or recorder.observer.refused()
        if reason:
            raise NotRepeatable(reason)
        self.engine, self.replays = recorder.engine, 0
        instructions = recorder.instructions
        if not instructions:
            raise NotRepeatable("it runs nothing on the workers")
        made = [n for kind, content, *_ in instructions for n in places_of(kind, content, MADE)]
        inside = set(made)
        taken = [n for kind, content, *_ in instructions for n in places_of(kind, content, USED)]
        used = list(dict.fromkeys(n for n in taken if n not in inside))
        windows, self.states = optimizer_windows(recorder.optimizers, instructions)
        self.guard = StepGuard(recorder, leaves, structure, used, self.states)
        numbers = {leaf._ref.number: i for i, leaf in enumerate(leaves) if type(leaf) is SignalTensor}
        self.arguments = [(i, numbers[n]) for i, n in enumerate(used) if n in numbers]
        self._keep_results(result, set(made) - recorder.freed, used, leaves)
        places = {n: i for i, n in enumerate([*used, *made])}
        kept: dict[int, int | None] = {places[n]: None for n in self.outputs}
        kept |= {places[g._ref.number]: g._ref.number for _, g in self.guard.gradients}
        seeds = _seeds(instructions, recorder.random_state)
        self.seeds = len(seeds)
        placed = tuple([(k, tuple(with_ids(k, c, places, None, seeds)), w) for k, c, w, _ in instructions])
        self.workers = tuple(sorted({w for _, _, workers, _ in instructions for w in workers}))
        self.number = next(_numbers)
        definition = Definition(placed, tuple(used), tuple([i for i, _ in self.arguments]), kept, windows)
        self.inputs = tuple(used)
        self.engine.record("define_step", (self.number, definition), self.workers)

    def _keep_results(self, result: Any, alive: set[int], used: list[int], leaves: list) -> None:
        """Check what remains after the call: results, which get new ids at each replay, and gradients."""
        self.results, self.result_structure = tree_flatten(result)
        self.outputs: list[int] = []
        for leaf in self.results:
            if type(leaf) is SignalTensor and leaf._ref.number in alive:
                if leaf._ref.view or leaf._ref.home.refs > 1:
                    raise NotRepeatable("it returns a view")
                if leaf._ref.number not in self.outputs:
                    self.outputs.append(leaf._ref.number)
                if leaf.requires_grad and not self.guard.backward:
                    raise NotRepeatable("it returns a tensor whose backward pass is still to come")
            elif not isinstance(leaf, ATOMS):
                raise NotRepeatable(f"it returns a {type(leaf).__name__} that the step did not compute")
        self.guard.take_gradients(alive - {*self.outputs})
        left = alive - {*self.outputs} - {g._ref.number for _, g in self.guard.gradients}
        if left:
            raise NotRepeatable("a tensor that it makes is kept after the step, but not returned")
        made = {leaf._ref.number: leaf for leaf in self.results if type(leaf) is SignalTensor}
        self.metas = [(made[n]._ref.home.mesh, made[n]._tensor_meta) for n in self.outputs]
        at = {n: i for i, n in enumerate(self.outputs)}
        self.results = [(at[x._ref.number],) if type(x) is SignalTensor else x for x in self.results]

    def replay(self, leaves: list) -> Any:
        """Send the step as one instruction; returns the results as new handles."""
        self.replays += 1
        engine = self.engine
        outputs = tuple([next(engine.ids) for _ in self.outputs])
        made = [
            handle(Ref(engine, n, Home(mesh)), meta)
            for n, (mesh, meta) in zip(outputs, self.metas, strict=True)
        ]
        arguments = tuple([leaves[i]._ref.number for _, i in self.arguments])
        settings = tuple([state.next_step() for state in self.states])
        seeds = tuple([draw_seed() for _ in range(self.seeds)])
        content = (self.number, arguments, outputs, seeds, settings)
        engine.record(
            "step", content, self.workers, "step", self.inputs, (*outputs, *self.guard.gradient_ids)
        )
        engine.flush()
        self.guard.hand_out_gradients()
        results = [made[x[0]] if x.__class__ is tuple else x for x in self.results]
        return tree_unflatten(results, self.result_structure)

    def forget(self) -> None:
        if not self.engine.closed:
            self.engine.record("forget_step", (self.number,), self.workers)


def _seeds(instructions: list[tuple], before: Tensor) -> dict[int, int]:
    """Return the index of each seed among those drawn from the script's generator.

    A checkpointed region that is recomputed uses the same seeds again. Raises NotRepeatable if the call uses
    random generators in another way.
    """
    drawn = dict.fromkeys(content[DRAW] for kind, content, *_ in instructions if kind in DRAWS)
    seeds = {seed: i for i, seed in enumerate(s for s in drawn if s is not None)}
    generator = torch.Generator().set_state(before)
    expected = [draw_seed(generator) for _ in seeds]
    if expected != list(seeds) or not torch.equal(generator.get_state(), torch.get_rng_state()):
        raise NotRepeatable("it uses a random generator in another way than by draws on the workers")
    return seeds
