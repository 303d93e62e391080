"""A sample of a database with its tensors on workers: the values and gradients of one process.

A layout is (how many workers, the axis that is cut); `None` for an axis leaves the tensors whole on each.
"""

import copy
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import wide_compiler.signals as gt
from wide_compiler import WideError

from .compare import Result, first_difference, loss_of
from .harness import Outcome, TooSlow, _limit, alone, cases, copied, detached
from .samples import Arguments, Sample

LAYOUTS: tuple[tuple[int, int | None], ...] = ((2, 0), (3, 0), (2, 1), (2, None))
# From best to worst: every op on shards as they lie, by a rule, by a decomposition, on gathered operands.
WAYS = ("local", "rule", "decomposed", "gathered")
_WAY_OF = {
    "local": "local",
    "native": "rule",
    "own": "rule",
    "decomposed": "decomposed",
    "gathered": "gathered",
}
_WHOLE = 9  # an axis that no tensor has


def outcomes_of(sample: Sample, seconds: int) -> Iterator[Outcome]:
    """The first lane of the first case of a sample, in every layout."""
    case = next(iter(cases(sample)))
    member, arguments = case.members[0], case.lanes[0]
    try:
        expected = alone(member, arguments, case)
    except Exception as error:
        yield Outcome(case.name, "skip", f"it fails in one process: {type(error).__name__}: {error}")
        return
    case.differentiable = bool(expected.gradients)
    plain = [x for x in pytree.tree_leaves((arguments, dict(member.state_dict()))) if isinstance(x, Tensor)]
    if any(x.layout != torch.strided or x.is_quantized for x in plain):
        yield Outcome(case.name, "skip", "sparse and quantized tensors do not travel")
        return
    if expected.drew and not case.unset:  # not the numbers of one process, but those of one worker
        drawn = _outcome(
            f"{sample} on 1", seconds, lambda: _run(member, arguments, case, 1, None), expected, case
        )
        if drawn.bad:
            yield drawn
            return
        expected, _ = _run(member, arguments, case, 1, None)
    for workers, axis in LAYOUTS:
        name = f"{sample} {'whole' if axis is None else f'axis {axis}'} on {workers}"
        yield _outcome(
            name, seconds, lambda w=workers, a=axis: _run(member, arguments, case, w, a), expected, case
        )


def _outcome(name: str, seconds: int, run: Callable[[], tuple], expected: Result, case: Any) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _limit(seconds):
                got, way = run()
        except TooSlow as error:
            gt.shutdown()
            return Outcome(name, "HANG", str(error))
        except gt.WorkerFailed as error:
            return Outcome(name, "ERROR", f"WorkerFailed: {error}")
        except gt.WorkerDied as error:
            gt.shutdown()
            return Outcome(name, "ERROR", f"{type(error).__name__}: {error}")
        except WideError as error:
            return Outcome(name, "refused", f"{type(error).__name__}: {error}")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename.rsplit('/', 2)[-1]}:{where.lineno}"
            return Outcome(name, "ERROR", f"{type(error).__name__}: {error} ({place})")
    try:
        problem = first_difference(got, expected, values=not (expected.drew or case.unset))
    except Exception as error:
        problem = f"cannot be compared: {type(error).__name__}: {error}"
    return Outcome(name, "WRONG" if problem else way, problem or "")


def _run(
    member: nn.Module, arguments: Arguments, case: Any, workers: int, axis: int | None
) -> tuple[Result, str]:
    gt.cpu_workers(3)
    shard = gt.ShardConfig(axis=_WHOLE if axis is None else axis, workers=range(workers))
    gt.register_config("database", gt.SignalConfig(shard=shard))
    member, (args, kwargs) = copy.deepcopy(member), copied(arguments, with_gradient=True)
    before = _ways()
    torch.manual_seed(0)
    with gt.signal.context("database"):
        gt.adopt(member)
        args, kwargs = pytree.tree_map_only(
            Tensor, lambda x: gt.tensor(x).requires_grad_(x.requires_grad), (args, kwargs)
        )
        output = member(*args, **kwargs)
    buffers = {name: fetched(b) for name, b in member.named_buffers()}
    result = Result(pytree.tree_map(fetched, output), {}, buffers)
    loss = loss_of(case.for_gradient(output))
    if loss is not None and case.differentiable:
        loss.backward()
        result.gradients = {f"parameter {name}": fetched(p.grad) for name, p in member.named_parameters()}
        inputs = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        result.gradients |= {f"input {i}": fetched(x.grad) for i, x in enumerate(inputs)}
    return result, _worst(before, _ways())


def fetched(x: Any) -> Any:
    """A tensor on workers as a plain one; anything else as a copy."""
    return x.detach().cpu() if isinstance(x, gt.SignalTensor) else detached(x)


def _ways() -> dict[str, int]:
    return gt.debug.worker_stats()[0]["ways"]


def _worst(before: dict[str, int], after: dict[str, int]) -> str:
    used = {_WAY_OF[way] for way, count in after.items() if count > before.get(way, 0)}
    return max(used, key=WAYS.index, default="local")
