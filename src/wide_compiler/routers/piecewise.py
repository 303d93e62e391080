"""Run a model that cannot be captured as a whole: its Python runs, some of its parts run by plans."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture import clone_member, structure
from ..config import WideConfig
from .calls import call_of, without_history
from .rehearsal import Rehearsal
from .router_explanation import Declined, GroupRow, RouterPlan
from .row_group import RowGroup
from .shadow import shadow_of_tree
from .split_loop import RUN, SAFE, memory_is_apart, split_forward
from .verdict import Verdict


class Piecewise:
    """Runs a model's Python with replacements for some of the modules it calls.

    Args:
        why: why the whole model has no graph.
        parts: `PlannedModel`s by path, for modules with plans. Those that are not faster by their plan run
            unchanged.
        groups: modules of one structure that the forward calls in a loop, to run together where faster.
    """

    def __init__(self, model: nn.Module, why: str, parts: dict[str, Any], groups: list[RowGroup]):
        self.model, self.why, self.parts, self.groups = model, why, parts, groups
        calls: dict[str, Any] = {path: part.forward for path, part in parts.items() if part.ran.together}
        methods: dict[str, Any] = {}
        self.forward = type(model).forward
        if any(group.latest.together for group in groups):
            methods = {"forward": split_forward(type(model).forward), SAFE: staticmethod(memory_is_apart)}
            methods[RUN] = staticmethod(RoundRunner(groups))
        self.shadow = shadow_of_tree(model, calls, **methods)
        found = bool(calls or methods)
        self.verdict = Verdict(found, "measured" if found else "no part of it is faster with a plan")

    def holds(self) -> bool:
        """Always valid: the model's Python reads its current state, and the parts have guards."""
        return True

    def run_call(self, tensors: Any, args: tuple, kwargs: dict) -> Any:
        """Run the model; falls back to the original if its forward was replaced."""
        if type(self.model).forward is not self.forward or "forward" in vars(self.model):
            return self.model(*args, **kwargs)
        return self.shadow(*args, **kwargs)

    def plan(self, name: str) -> RouterPlan:
        """Return the plan of all parts."""
        rows: list[Any] = [group.explain() for group in self.groups]
        declined: list[Any] = [Declined.of(("",), "loop", self.why, op=name)]
        for path, part in self.parts.items():
            rows += [row.below(path) for row in part.plan.groups]
            declined += [row.below(path) for row in part.plan.declined]
        return RouterPlan(rows + declined, "" if self.verdict.together else self.verdict.why, name)


class RoundRunner:
    """Runs the calls of all iterations of a split loop."""

    def __init__(self, groups: Sequence[RowGroup]):
        self.place = {id(m): (group, lane) for group in groups for lane, m in enumerate(group.modules)}

    def __call__(self, calls: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Outputs of (module, argument) calls, together if they are lanes of one group."""
        places = [self.place.get(id(module), (None, 0)) for module, _ in calls]
        groups = {id(group) for group, _ in places}
        lanes = [lane for _, lane in places]
        plain = all(type(x) is Tensor for _, x in calls)
        if not calls or len(groups) > 1 or places[0][0] is None or len(set(lanes)) < len(lanes) or not plain:
            return [module(x) for module, x in calls]
        return places[0][0].run(lanes, [x for _, x in calls])


def in_pieces(
    model: nn.Module,
    why: str,
    args: tuple,
    kwargs: dict,
    rehearsal: Rehearsal,
    part_of: Callable[[nn.Module], Any],
    config: WideConfig,
) -> Piecewise | None:
    """Return the model with its parts run by plans; None if nothing can be joined.

    Args:
        part_of: returns the `PlannedModel` of a submodule.
    """
    children = dict(_called_by(model))
    recorded = _recorded_calls(model, list(children), args, kwargs)
    groups, parts = [], {}
    splits = "forward" not in vars(model) and split_forward(type(model).forward) is not None
    for paths in rehearsal.beside(recorded) if splits else []:
        given = [recorded[path] for path in paths]
        if all(len(a) == 1 and not k and type(a[0]) is Tensor for a, k in given):
            # Modules of the same structure that were not called this time belong to the group, too.
            kind = rehearsal.structures[paths[0]]
            idle = [path for path in children if path not in recorded and rehearsal.structures[path] == kind]
            own = [path for path in children if path in paths or path in idle]
            groups.append(RowGroup(own, [children[path] for path in own], config))
            groups[-1].settle([own.index(path) for path in paths], [a[0] for a, _ in given])
    joined = {path for group in groups for path in group.names}
    for path, (own_args, own_kwargs) in recorded.items():
        if path not in joined and alike_modules(children[path]):
            part = part_of(children[path])
            part.settle(call_of(own_args, own_kwargs))
            if part.plan.groups:
                parts[path] = part
    return Piecewise(model, why, parts, groups) if parts or groups else None


def _called_by(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """(path, module) of the children that a module may call, including those in module lists and dicts."""
    for name, child in module._modules.items():
        if child is None:
            continue
        if type(child).forward is nn.Module.forward:
            yield from _called_by(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def _recorded_calls(
    model: nn.Module, paths: list[str], args: tuple, kwargs: dict
) -> dict[str, tuple[tuple, dict]]:
    """Arguments of the first call of each of these modules, in order of the calls; runs a copy."""
    recorded: dict[str, tuple[tuple, dict]] = {}
    double = clone_member(model)

    def record(path: str) -> Any:
        def hook(module: nn.Module, own: tuple, named: dict) -> None:
            recorded.setdefault(path, _tree.tree_map(without_history, (own, named)))

        return hook

    for path in paths:
        double.get_submodule(path).register_forward_pre_hook(record(path), with_kwargs=True)
    # Copies, which a forward may write in place like the output of another module.
    copies = _tree.tree_map(
        lambda x: without_history(x).clone() if isinstance(x, Tensor) else x, (args, kwargs)
    )
    with torch.random.fork_rng():
        double(*copies[0], **copies[1])
    return recorded


def alike_modules(model: nn.Module) -> list[GroupRow]:
    """Groups of outermost modules with parameters that have the same structure."""
    sorts: dict[Any, list[str]] = {}
    for path, module in model.named_modules():
        kind = structure(module) if path and next(module.parameters(), None) is not None else None
        if kind is not None:
            sorts.setdefault(kind, []).append(path)
    groups: list[GroupRow] = []
    taken: set[str] = set()
    for paths in sorts.values():
        own = [path for path in paths if not any(path.startswith(f"{outer}.") for outer in taken)]
        if len(own) > 1:
            taken |= set(own)
            groups.append(GroupRow.of_modules(own, [model.get_submodule(path) for path in own]))
    return groups
