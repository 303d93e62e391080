"""WideRouter: a collective of towers, those of one structure run as lanes of one graph."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..config import WideConfig
from ..model.numbered import Numbered
from ..model.program import WideProgram
from ..tuning.when import autocast_state, plain_world
from .again import Again, Repeats
from .calls import plain_look
from .explain import RouterExplanation
from .formation import Formation
from .memory import Memory
from .tower_group import VMapTowerGroup
from .tower_holder import TowerHolder, check_takes_mask
from .traced import Recipe, Step, look_of, programs_for

# Train and eval, with a part frozen or not: more formations than these are not kept.
MAX_FORMATIONS = 8
GROUPS = "_vmap_groups"


class _Objects(dict):
    """A router's objects. The groups are to be found there, but are none of what the user has put in."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.groups: dict[tuple[str, ...], VMapTowerGroup] = {}

    def __missing__(self, key: str) -> Any:
        if key == GROUPS:
            return self.groups
        raise KeyError(key)

    def __reduce__(self) -> Any:
        return _Objects, (dict(self),)


class WideRouter(TowerHolder):
    """Towers that see the same input, run together.

    Args:
        name: the router's name.
        auto_discover: register every `BaseTower` when it is attached.
        config: how groups are built and measured; `WideConfig(tune_seconds=0)` runs every group together
            without measuring.
    """

    objects: _Objects

    def __init__(self, name: str, auto_discover: bool = True, config: WideConfig | None = None):
        super().__init__(name, auto_discover)
        self._settings = config or WideConfig()
        self._formations: list[Formation] = []  # the one that ran last first
        self._prepared = False
        self._recipes: dict[str, Recipe] = {}
        self._traced_plans = Numbered()
        self._memory = Memory()
        self._repeats = Repeats()
        self.objects = _Objects()

    @property
    def config(self) -> WideConfig:
        """How groups are built and measured. Another one makes new groups."""
        return self._settings

    @config.setter
    def config(self, config: WideConfig) -> None:
        self._settings = config
        self._changed()

    def _changed(self) -> None:
        self._formations.clear()  # they would keep towers alive that have gone
        self._prepared = False
        self._repeats = Repeats()
        self.objects.groups = {}

    # Running.

    def forward(self, x: Any, **options: Any) -> Any:
        """The towers' outputs by name, unless you say otherwise."""
        return self.wide_forward(x, **options)

    def wide_forward(
        self,
        x: Any,
        mask: Tensor | None = None,
        tower_names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The towers' outputs by name, in the order of registration.

        Args:
            x: the input of every tower.
            mask: given to the towers as `mask=`, if it is not None.
            tower_names: which towers run; all by default.
            kwargs: given to every tower.
        """
        if mask is not None:
            kwargs["mask"] = mask
        if tower_names is not None and not isinstance(tower_names, str):
            tower_names = tuple(tower_names)
        tracing = torch.compiler.is_dynamo_compiling()
        if tracing:
            towers = self._towers()
        else:
            towers = self._repeats.towers(self)
            outputs = self._repeats.run((self.training, tower_names), towers, (x,), kwargs)
            if outputs is not None:
                return outputs
        names = self._selected(towers, tower_names)
        if mask is not None:
            check_takes_mask([(name, towers[name]) for name in names])
        if tracing and self._prepared:
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
        """A call that is not like the latest."""
        look, repeats = plain_look(args, kwargs), self._repeats
        key = (circumstances, look)
        if look is not None and repeats.find(key, towers):
            outputs = repeats.run(circumstances, towers, args, kwargs)
            if outputs is not None:
                return outputs
        repeats.latest = None
        formation = self._formation(towers)
        outputs = formation.run(names, args, kwargs)
        if look is not None:
            repeats.keep(key, Again(circumstances, towers, names, args, kwargs, formation))
        return outputs

    def _traced_forward(
        self, towers: dict[str, nn.Module], names: tuple[str, ...], args: tuple, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Laid into a trace of torch.compile, see `traced`."""
        leaves, _ = _tree.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        reads = tuple([self._recipes[name].read(tower) for name, tower in towers.items()])
        if any(read is None for read in reads):
            return {name: towers[name](*args, **kwargs) for name in names}
        signature = _tree.signature((args, kwargs))
        kinds, shapes, any_batch = look_of(tensors)
        look = (signature, kinds, shapes, any_batch, autocast_state(), torch.is_grad_enabled())
        plan = self._traced_plans.get(self._plan_while_tracing(names, reads, look))
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

    @torch._dynamo.assume_constant_result
    def _plan_while_tracing(self, names: tuple[str, ...], reads: Any, look: Any) -> int:
        """The position in `_traced_plans` (a tracer can only take a plain number from here).

        `reads` is not looked at: reading it has put guards on all that the formation is made from.
        """
        signature, kinds, shapes, any_batch, autocast, grad = look
        plan = []
        with torch._guards.tracing(None), torch.utils._python_dispatch._disable_current_modes():
            formation = self.formation()
            formation.latest, self._repeats.latest = names, None
            for group, lanes in formation.split(names):
                if group is None:
                    plan.append(Step(lanes))
                    continue
                with torch.set_grad_enabled(grad):
                    mode = (signature, kinds, autocast, group.programs.grad_mode())
                step = Step([group.names[lane] for lane in lanes])
                if all(self._recipes[name].watchable for name in step.names):
                    program = programs_for(group, mode, shapes, (False,) * len(kinds), any_batch)
                    if isinstance(program, WideProgram):
                        step = Step.together(group, lanes, program)
                group.note(lanes, step.program, "torch.compile is tracing")
                plan.append(step)
        return self._traced_plans.keep(plan)

    def formation(self) -> Formation:
        """The towers in groups, as they are now."""
        return self._formation(self._towers())

    def _formation(self, towers: dict[str, nn.Module]) -> Formation:
        for position, known in enumerate(self._formations):
            if known.holds_for(towers):
                if position:
                    self._formations.insert(0, self._formations.pop(position))
                return known
        self._repeats.drop_together()
        self._formations.insert(0, Formation(towers, self.config, self._memory))
        del self._formations[MAX_FORMATIONS:]
        return self._formations[0]

    # What is known beforehand.

    def analyze_structure(self) -> list[list[str]]:
        """Sort the towers by structure; gives the names of each sort."""
        return [list(names) for names in self.formation().names]

    def prepare_for_compile(self, device: torch.device | str | None = None) -> "WideRouter":
        """Build the groups, so that torch.compile finds them: no graph break, and no recompilation later on.

        The towers' numbers are moved next to each other in memory, so that calls without torch.compile need
        not stack them; the parameters themselves stay the objects they are.

        Args:
            device: where to move the router first, if given.
        """
        if device is not None:
            self.to(device)
        formation = self.formation()
        formation.move_together()
        self.objects.groups = formation.groups
        self._recipes = {name: Recipe.of(tower) for name, tower in self._towers().items()}
        self._prepared = True
        self._repeats = Repeats()
        return self

    def compile(self, **options: Any) -> Any:
        """`prepare_for_compile`, then `torch.compile` with these options; gives the compiled router."""
        return torch.compile(self.prepare_for_compile(), **options)

    def _apply(self, fn: Any, recurse: bool = True) -> "WideRouter":
        before = _kinds(self)
        super()._apply(fn, recurse)
        if _kinds(self) != before:
            self._memory.slices.clear()
            self._changed()
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Groups are built again where they are needed: a copy's are made of the copy's towers.
        own = {"_formations": [], "_traced_plans": Numbered(), "_memory": Memory(), "_recipes": {}}
        state = {**self.__dict__, **own, "_prepared": False}
        state["objects"] = _Objects(self.objects)
        return state

    def explain(self) -> RouterExplanation:
        """What the last forward did with the towers."""
        if self._repeats.latest is not None:
            return RouterExplanation(self._repeats.latest.rows)
        return RouterExplanation(self._formations[0].explain() if self._formations else [])

    def __repr__(self) -> str:
        return (
            f"WideRouter(name={self._label.text!r}, towers={len(self._towers())}, "
            f"analyzed={bool(self._formations)}, prepared={self._prepared})"
        )


def _kinds(module: nn.Module) -> list[Any]:
    return [(t.dtype, t.device) for t in (*module.parameters(), *module.buffers())]
