"""CompileRouter: runs modules of one structure inside any model as lanes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..config import WideConfig
from ..model.inputs import normalize_sample
from .base_router import RouterError
from .calls import call_of
from .piecewise import alike_modules
from .planned_model import PlannedModel
from .programs import InSequence
from .router_explanation import RouterPlan


class CompileRouter:
    """Finds independent modules of one structure that are called alike, and runs them as lanes.

    Examples are experts of a mixture, heads, branches, encoders per feature, and query, key and value
    projections. Independence is determined on the captured graph. Without a sample, the first call of the
    compiled model makes the plan.
    """

    def __init__(self, model: nn.Module, config: WideConfig | None = None):
        if not isinstance(model, nn.Module):
            raise RouterError(f"CompileRouter takes a torch.nn.Module, got {type(model).__name__}")
        self.model, self.config = model, config or WideConfig()
        self.planned = PlannedModel(model, self.config)

    @classmethod
    def from_module(
        cls,
        model: nn.Module,
        sample: Any = None,
        sample_kwargs: Mapping[str, Any] | None = None,
        config: WideConfig | None = None,
    ) -> "CompileRouter":
        """Make a router for any module.

        Args:
            sample: an input to plan with: a tensor, a tuple of positional arguments or a dict of keywords.
        """
        router = cls(model, config)
        if sample is not None or sample_kwargs:
            router.compile_towers(sample, sample_kwargs)
        return router

    def compile_towers(
        self, sample: Any = None, sample_kwargs: Mapping[str, Any] | None = None
    ) -> RouterPlan:
        """Return the plan: from the sample, or the last call, else a guess from the modules' structure."""
        if sample is not None or sample_kwargs:
            self.planned.settle(call_of(*normalize_sample(sample, sample_kwargs)))
        return self.plan

    @property
    def plan(self) -> RouterPlan:
        """The current plan."""
        name = type(self.model).__name__
        return self.planned.plan or RouterPlan(alike_modules(self.model), name=name, settled=False)

    def compile(self, mode: str | None = None, **options: Any) -> nn.Module:
        """Return a module that runs the plan; with a mode or options, compiled by `torch.compile` as well.

        Returns the model itself if a sample has shown that nothing can be joined.
        """
        ran = self.planned.ran
        nothing_to_join = ran is not None and isinstance(ran.program, InSequence)
        model = self.model if nothing_to_join else self.planned
        if mode is None and not options:
            return model
        return torch.compile(model, mode=mode, **options)  # type: ignore[return-value]

    def explain(self) -> RouterPlan:
        """Return the plan, with how each group ran in the last call."""
        return self.plan

    def print_stages(self) -> None:
        """Print the groups in the order in which they run."""
        from rich.console import Console

        console, lines = Console(), []
        for number, groups in enumerate(self.plan.stages, start=1):
            lines.append(f"stage {number}")
            lines += [f"  {len(g.paths)} x {g.op}: {', '.join(g.paths)} ({g.how})" for g in groups]
        lines += [f"loop: {', '.join(other.paths)}: {other.why}" for other in self.plan.declined]
        lines += [f"all of it: loop, because {self.plan.why}"] if self.plan.why else []
        for line in lines:
            console.print(line, highlight=False, markup=False)

    def print_tree(self) -> None:
        """Print the model's modules, each with its group."""
        from rich.console import Console
        from rich.tree import Tree

        number = {path: i for i, g in enumerate(self.plan.groups, start=1) for path in g.paths}
        tree = Tree(type(self.model).__name__)
        branches: dict[str, Any] = {"": tree}
        for path, module in self.model.named_modules():
            if path:
                parent, _, name = path.rpartition(".")
                mark = f"  [group {number[path]}]" if path in number else ""
                label = f"{name}: {type(module).__name__}{mark}".replace("[", r"\[")
                branches[path] = branches[parent].add(label)
        Console().print(tree, highlight=False)
