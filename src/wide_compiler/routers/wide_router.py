"""WideRouter: a collective of towers; towers of one structure run as lanes of one graph."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from .._dynamo_marks import TracedStore, constant_result
from ..config import WideConfig
from ..guards.modes import plain_world
from .base_router import RUNNING, forget_filled, overridable
from .calls import call_of, first_that
from .formation import Formation
from .recipe import Recipe
from .repeated_calls import RepeatedCall, RouterCalls
from .router_explanation import RouterExplanation
from .stacked_memory import Memory
from .tower_group import VMapTowerGroup
from .tower_holder import TowerHolder, check_takes_mask
from .traced import look_of, outside_the_trace, traced_plan

# Limit on kept formations, such as train and eval, with parts frozen or not.
MAX_FORMATIONS = 8
GROUPS = "_vmap_groups"


class _Objects(dict):
    """A router's objects; the groups can be looked up in it, but are not stored as items."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.groups: dict[tuple[str, ...], VMapTowerGroup] = {}

    def __missing__(self, key: str) -> Any:
        if key == GROUPS:
            return self.groups
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return key == GROUPS or super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self.groups if key == GROUPS else super().get(key, default)

    def __reduce__(self) -> Any:
        return _Objects, (dict(self),)


class WideRouter(TowerHolder):
    """Runs towers on the same input; towers of one structure run as one lane graph.

    Args:
        name: the router's name.
        auto_discover: register every `BaseTower` when it is attached.
        config: how groups are built and measured; `WideConfig(tune_seconds=0)` runs every group together
            without measuring.
        stacked: keep the parameters of towers of one structure as rows of one stack that is a single autograd
            leaf, which trains many small towers faster. `torch.autograd.grad(loss, p)` then does not work.
        options: options of `BaseRouter` (`uuid`, `strict_dtype`, ...).
    """

    _kept_objects: _Objects

    def __init__(
        self,
        name: str,
        auto_discover: bool = True,
        config: WideConfig | None = None,
        stacked: bool = False,
        **options: Any,
    ):
        super().__init__(name, auto_discover, **options)
        self._router_settings = config or WideConfig()
        self._router_formations: list[Formation] = []  # most recently used first
        self._router_prepared = False
        self._router_recipes: dict[str, Recipe] = {}
        self._router_traced_plans = TracedStore()
        self._router_memory = Memory(stacked)
        self._router_repeats = RouterCalls()
        self._kept_objects = _Objects()

    @overridable
    def config(self) -> Any:
        """How groups are built and measured; assigning a `WideConfig` makes new groups.

        A subclass may store any other value under this name; it is returned unchanged.
        """
        return self._router_settings

    @config.setter  # type: ignore[no-redef]
    def config(self, value: Any) -> None:
        if isinstance(value, WideConfig):
            self.__dict__.pop("config", None)
            self._router_settings = value
            self._changed()
        else:
            self.__dict__["config"] = value

    def _changed(self) -> None:
        self._router_formations.clear()  # they would keep removed towers alive
        self._router_memory.dissolve()
        self._router_prepared = False
        self._router_repeats = RouterCalls()
        self._kept_objects.groups = {}

    # Running.

    def forward(self, x: Any, **options: Any) -> Any:
        """Return the towers' outputs by name; override it for more."""
        return self.wide_forward(x, **options)

    def wide_forward(
        self,
        x: Any,
        mask: Any = None,
        tower_names: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the towers' outputs by name, in order of registration.

        Args:
            x: the input of every tower.
            mask: passed to the towers as `mask=` if not None.
            tower_names: which towers run; all by default. Names and mask may be swapped, as in geofractal's
                routers.
            kwargs: passed to every tower.
        """
        if isinstance(mask, (list, tuple)) or isinstance(tower_names, Tensor):
            mask, tower_names = tower_names, mask
        if RUNNING.forward:
            return self._run_towers(x, mask, tower_names, kwargs)
        RUNNING.forward = True  # so that the towers' caches can be read afterwards
        try:
            return self._run_towers(x, mask, tower_names, kwargs)
        finally:
            RUNNING.forward = False
            forget_filled()

    def _run_towers(
        self, x: Any, mask: Tensor | None, tower_names: Sequence[str] | None, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        if mask is not None:
            kwargs["mask"] = mask
        if tower_names is not None and not isinstance(tower_names, str):
            tower_names = tuple(tower_names)
        tracing = torch.compiler.is_dynamo_compiling()
        towers = self._towers() if tracing else self._router_repeats.towers(self)
        if not tracing:
            repeated = self._router_repeats.find((self.training, tower_names), (x,), kwargs)
            outputs = None if repeated is None else repeated.run(towers, (x,), kwargs)
            if outputs is not None:
                return outputs
        names = self._selected(towers, tower_names)
        if mask is not None:
            check_takes_mask([(name, towers[name]) for name in names])
        if tracing and self._router_prepared:
            return self._traced_forward(towers, names, (x,), kwargs)
        if tracing or not plain_world():
            return {name: towers[name](x, **kwargs) for name in names}
        return self._batched_tower_forward((self.training, tower_names), towers, names, (x,), kwargs)

    def _batched_tower_forward(
        self,
        circumstances: tuple[Any, ...],
        towers: dict[str, nn.Module],
        names: tuple[str, ...],
        args: tuple,
        kwargs: dict[str, Any],
    ) -> dict[str, Any]:
        """Run a call that differs from all earlier ones."""
        formation = self._formation(towers)
        call = RepeatedCall(towers, names, formation, formation.plan(names, args, kwargs))
        outputs = call.run(towers, args, kwargs, call_of(args, kwargs).tensors)
        if outputs is None:  # building the plan has changed a tower
            return {name: towers[name](*args, **kwargs) for name in names}
        self._router_repeats.keep(circumstances, args, kwargs, call)
        return outputs

    def _traced_forward(
        self, towers: dict[str, nn.Module], names: tuple[str, ...], args: tuple, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Run under torch.compile, see `traced`."""
        leaves, _ = _tree.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        reads = tuple([self._router_recipes[name].read(tower) for name, tower in towers.items()])
        if any(read is None for read in reads):
            return {name: towers[name](*args, **kwargs) for name in names}
        look = look_of((args, kwargs), tensors)
        plan = self._router_traced_plans.get(self._plan_while_tracing(names, reads, look))
        outputs: dict[str, Any] = dict.fromkeys(names)
        for step in plan:
            own = [towers[name] for name in step.names]
            if step.program is None:
                results = [tower(*args, **kwargs) for tower in own]
            else:
                results = step.run(own, tensors)
            for name, result in zip(step.names, results, strict=True):
                outputs[name] = result
        return outputs

    @constant_result
    def _plan_while_tracing(self, names: tuple[str, ...], reads: Any, look: Any) -> int:
        """Index into `_router_traced_plans`; a constant function may only return plain values to the tracer.

        `reads` is unused: reading it has placed guards on everything that the formation depends on.
        """
        with outside_the_trace():
            formation = self.formation()
            self._router_repeats.latest = None
            plan = traced_plan(formation, names, look, self._router_recipes)
        return self._router_traced_plans.keep(plan)

    def formation(self) -> Formation:
        """Return the towers in groups, for their current state."""
        return self._formation(self._towers())

    def _formation(self, towers: dict[str, nn.Module]) -> Formation:
        formations = self._router_formations
        known = first_that(formations, lambda formation: formation.holds_for(towers))
        if known is None:
            self._router_repeats.clear()
            known = Formation(towers, self._router_settings, self._router_memory)
            formations[:] = [known, *formations[: MAX_FORMATIONS - 1]]
            if self._router_memory.stacked:
                known.move_together()
        return known

    # Preparation.

    def analyze_structure(self) -> list[list[str]]:
        """Return the names of the towers, grouped by structure."""
        return [list(names) for names in self.formation().names]

    def prepare_for_compile(self, device: torch.device | str | None = None) -> "WideRouter":
        """Build the groups for torch.compile, so that there are no graph breaks and no recompiles later.

        The towers' tensors are moved into stacked memory, so that calls without torch.compile need not stack
        them; the parameters stay the same objects.

        Args:
            device: device to move the router to first, if given.
        """
        if device is not None:
            self.to(device)
        formation = self.formation()
        formation.move_together()
        self._kept_objects.groups = formation.groups
        self._router_recipes = {name: Recipe.of(tower) for name, tower in self._towers().items()}
        self._router_prepared = True
        self._router_repeats = RouterCalls()
        return self

    def compile(self, **options: Any) -> Any:
        """Call `prepare_for_compile`, then `torch.compile` with these options; return the compiled router."""
        return torch.compile(self.prepare_for_compile(), **options)

    def prepare_and_compile(self, **options: Any) -> Any:
        """Same as `compile`; geofractal's name."""
        return self.compile(**options)

    def _apply(self, fn: Any, recurse: bool = True) -> "WideRouter":
        before = _kinds(self)
        if self._router_memory.stacked:
            self._changed()
        super()._apply(fn, recurse)
        if _kinds(self) != before:
            self._router_memory.slices.clear()
            self._changed()
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Groups are not copied, because they hold the original's towers; they are built again on demand.
        own = {
            "_router_formations": [],
            "_router_traced_plans": TracedStore(),
            "_router_memory": Memory(self._router_memory.stacked),
            "_router_recipes": {},
        }
        state = {**self.__dict__, **own, "_router_prepared": False}
        state["_kept_objects"] = _Objects(self._kept_objects)
        return state

    def explain(self) -> RouterExplanation:
        """Return how the towers ran in the last forward."""
        latest = self._router_repeats.latest
        ran = self._router_formations[:1] if latest is None else [latest.answer]
        return RouterExplanation([row for one in ran for row in one.explain()], name="towers")

    def __repr__(self) -> str:
        return (
            f"WideRouter(name={self._label.text!r}, towers={len(self._towers())}, "
            f"analyzed={bool(self._router_formations)}, prepared={self._router_prepared})"
        )


def _kinds(module: nn.Module) -> list[Any]:
    return [(t.dtype, t.device) for t in (*module.parameters(), *module.buffers())]
