"""A sample of a database as N members of a wide model: compiled, run by two doors, compared with the loop."""

import contextlib
import copy
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import wide_compiler
from wide_compiler import WideConfig, WideError, WideModel

from .compare import Result, coarsest, first_difference, gradients_differ, loss_of
from .samples import Arguments, Sample, seed

LANES = 3
WAYS = ("rule", "vmap", "node loop", "whole loop")  # from best to worst
_UNSET = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}


@dataclass
class Outcome:
    """How a sample ended: one of `WAYS` (equal to the loop), or 'skip', 'refused', 'WRONG', 'ERROR', 'HANG'.

    'skip': the member itself fails. 'refused': a clear error of this library. 'ERROR': any other one.
    """

    sample: str
    kind: str
    detail: str = ""
    reason: str = ""  # why the way is not a better one

    @property
    def bad(self) -> bool:
        return self.kind in ("WRONG", "ERROR", "HANG")


class OpModule(nn.Module):
    """One call of a function, its tensors partly parameters or buffers of this module, partly inputs."""

    def __init__(self, call: Callable[..., Any], own: dict[str, Tensor]):
        super().__init__()
        self.call = call
        for name, tensor in own.items():
            if tensor.requires_grad:
                self.register_parameter(name, nn.Parameter(tensor.detach().clone()))
            else:
                self.register_buffer(name, tensor.clone())

    def forward(self, *inputs: Tensor) -> Any:
        return self.call({**self._parameters, **self._buffers}, inputs)


def op_members(sample: Sample, placement: int) -> tuple[list[nn.Module], list[Arguments]]:
    """One member for each lane, and its inputs.

    `placement` 0 makes tensors 0, 2, ... of those with a gradient parameters and leaves all others inputs;
    1 makes tensors 1, 3, ... parameters and tensors without a gradient buffers.
    """
    first, spec = pytree.tree_flatten(sample.lanes[0])
    tensors = [i for i, leaf in enumerate(first) if isinstance(leaf, Tensor)]
    learned = [i for i in tensors if first[i].requires_grad]
    own = {i: f"p{i}" for i in learned[placement::2]}
    if placement:
        own |= {i: f"b{i}" for i in tensors if i not in learned}
    inputs = [i for i in tensors if i not in own]

    def call(state: dict[str, Tensor], given: tuple[Tensor, ...]) -> Any:
        leaves = list(first)
        for i, name in own.items():
            leaves[i] = state[name]
        for i, tensor in zip(inputs, given, strict=True):
            leaves[i] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        return sample.function(*args, **kwargs)

    by_lane = [pytree.tree_leaves(lane) for lane in sample.lanes]
    members = [OpModule(call, {name: leaves[i] for i, name in own.items()}) for leaves in by_lane]
    return members, [(tuple(leaves[i] for i in inputs), {}) for leaves in by_lane]


@dataclass
class Case:
    """N members and their arguments by lane, ready to be run any way."""

    name: str
    members: list[nn.Module]
    lanes: list[Arguments]
    for_gradient: Callable[[Any], Any]
    unset: bool = False  # gives memory nobody has written
    differentiable: bool = True  # has the op a backward for these arguments?


def cases(sample: Sample) -> Iterator[Case]:
    """A module as it is; a function in both placements."""
    if sample.members is not None:
        yield Case(str(sample), sample.members, sample.lanes, sample.for_gradient)
        return
    for placement in (0, 1):
        members, lanes = op_members(sample, placement)
        unset = sample.name.split(".")[-1] in _UNSET
        yield Case(f"{sample} placement {placement}", members, lanes, sample.for_gradient, unset)


def run(case: Case, seconds: int = 60) -> Outcome:
    """Compare one case, by lane and with lane 0's input for all; the worse of the two ways counts."""
    outcomes = []
    for door, lanes in (("each", case.lanes), ("shared", [case.lanes[0]] * len(case.lanes))):
        with _limit(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcome = _run_door(case, door, lanes)
            except WideError as error:
                outcome = Outcome(case.name, "refused", f"{type(error).__name__}: {error}")
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{where.filename.rsplit('/', 2)[-1]}:{where.lineno}"
                outcome = Outcome(case.name, "ERROR", f"{type(error).__name__}: {error} ({place})")
        outcome.sample += f" {door}"
        if outcome.kind == "skip":
            return outcome
        outcomes.append(outcome)
    return max(outcomes, key=lambda o: _ORDER.index(o.kind))


_ORDER = (*WAYS, "skip", "refused", "WRONG", "ERROR")


def _run_door(case: Case, door: str, lanes: list[Arguments]) -> Outcome:
    seed(0)
    try:
        expected = [alone(m, lane, case) for m, lane in zip(case.members, lanes, strict=True)]
    except Exception as error:
        return Outcome(case.name, "skip", f"the member fails: {type(error).__name__}: {error}")
    random = any(result.drew for result in expected)
    wide = compiled(case.members, lanes[0])
    differentiable = any(e.gradients for e in expected)
    seed(0)
    got = run_wide(wide, door, lanes, case, differentiable)
    problem = _difference(got, expected, door, values=not (random or case.unset))
    if problem is None and random and not case.unset:
        problem = _same_draws(got, expected)
    way, reason = way_of(wide)
    return Outcome(case.name, "WRONG" if problem else way, problem or "", reason)


def compiled(members: list[nn.Module], sample: Arguments) -> WideModel:
    args, kwargs = copied(sample)
    members = [copy.deepcopy(m) for m in members]
    return wide_compiler.compile(members, args, sample_kwargs=kwargs, config=WideConfig(tune_seconds=0))


def alone(member: nn.Module, arguments: Arguments, case: Case) -> Result:
    """One member run by itself, on copies."""
    member, (args, kwargs) = copy.deepcopy(member), copied(arguments, with_gradient=True)
    state = torch.get_rng_state()
    output = member(*args, **kwargs)
    drew = not torch.equal(state, torch.get_rng_state())
    buffers = {name: b.detach().clone() for name, b in member.named_buffers()}
    result = Result(pytree.tree_map(detached, output), {}, buffers, drew)
    loss = loss_of(case.for_gradient(output))
    if loss is not None and _backward(loss):
        result.gradients = {f"parameter {name}": p.grad for name, p in member.named_parameters()}
        result.gradients |= {f"input {i}": g for i, g in enumerate(_gradients(args, kwargs))}
    return result


def run_wide(
    wide: WideModel, door: str, lanes: list[Arguments], case: Case, differentiable: bool
) -> list[Result]:
    """All lanes through one door. With a shared input its gradient, a sum over lanes, stands in lane 0."""
    inputs = [copied(lane, with_gradient=True) for lane in (lanes if door == "each" else lanes[:1])]
    if door == "each":
        args = tuple(list(column) for column in zip(*(a for a, _ in inputs), strict=True))
        kwargs = {key: [k[key] for _, k in inputs] for key in inputs[0][1]}
        outputs = wide.each(*args, **kwargs)
    else:
        outputs = _unstacked(wide.shared(*inputs[0][0], **inputs[0][1]), len(lanes))
    buffers = [_lane_tensors(wide, lane, gradients=False) for lane in range(len(lanes))]
    results = [Result(pytree.tree_map(detached, o), {}, b) for o, b in zip(outputs, buffers, strict=True)]
    loss = loss_of([case.for_gradient(o) for o in outputs]) if differentiable else None
    if loss is not None:
        loss.backward()
        for lane, result in enumerate(results):
            result.gradients = _lane_tensors(wide, lane, gradients=True)
            if lane < len(inputs):
                result.gradients |= {f"input {i}": g for i, g in enumerate(_gradients(*inputs[lane]))}
    return results


def way_of(wide: WideModel) -> tuple[str, str]:
    """The worst way any node of the last program runs, and why."""
    explanation = wide.explain(measure=False)
    if explanation.way == "loop":
        return "whole loop", explanation.why
    for how, way in (("loop", "node loop"), ("vmap", "vmap")):
        rows = [row for row in explanation.rows if row.how == how]
        if rows:
            return way, f"{rows[0].op}: {rows[0].why}"
    return "rule", ""


def _unstacked(stacked: Any, n: int) -> list[Any]:
    for leaf in pytree.tree_leaves(stacked):
        if isinstance(leaf, Tensor) and (not leaf.dim() or len(leaf) != n):
            raise AssertionError(f"an output of shared is {tuple(leaf.shape)}, without {n} lanes on axis 0")
    return wide_compiler.unstack(stacked, n)


def _difference(got: list[Result], expected: list[Result], door: str, values: bool) -> str | None:
    shared = [name for name in expected[0].gradients if door == "shared" and name.startswith("input")]
    for name in shared:
        summed = [g for g in [e.gradients.pop(name) for e in expected] if g is not None]
        total = sum(summed) if summed else None
        problem = gradients_differ(got[0].gradients.get(name), total, coarsest(expected[0].output))
        if values and problem:
            return f"gradient of shared {name} {problem}"
    for lane, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        if problem := first_difference(mine, theirs, values):
            return f"lane {lane}: {problem}"
    return None


def _same_draws(got: list[Result], expected: list[Result]) -> str | None:
    """Lanes that draw must not all draw the same, unless the members, run one after another, do so too."""

    def alike(results: list[Result]) -> bool:
        return all(first_difference(r, results[0]) is None for r in results[1:])

    return "all lanes draw the same numbers" if alike(got) and not alike(expected) else None


def _lane_tensors(wide: WideModel, lane: int, gradients: bool) -> dict[str, Any]:
    kept = {}
    for path, tensor in wide.tensors().items():
        if isinstance(tensor, nn.Parameter) == gradients:
            value = tensor.grad if gradients else tensor.detach()
            value = value[lane].clone() if value is not None and path in wide.wide_states else value
            kept[f"parameter {path}" if gradients else path] = value
    return kept


def _gradients(args: Any, kwargs: Any) -> list[Tensor | None]:
    return [leaf.grad for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _backward(loss: Tensor) -> bool:
    """False where the op has no backward for the member either."""
    try:
        loss.backward()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def detached(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, Tensor) else x


def copied(arguments: Arguments, with_gradient: bool = False) -> Arguments:
    def copy_of(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return copy.deepcopy(x)
        return x.detach().clone().requires_grad_(with_gradient and x.requires_grad)

    return pytree.tree_map(copy_of, arguments)


class TooSlow(Exception):
    pass


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooSlow(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
