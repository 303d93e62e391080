"""Builder: evaluates each call on probe values, then emits it into the lane graph.

The probe is a few lanes (two, if there are two) with real values. A rule that raises, or gives another result
than the member's op on each lane, is detected at its node, before anything depends on it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from .helpers import expand_lanes, lead
from .lane_graph import scalar_tensor


@dataclass
class Val:
    """A value of the lane graph: its node, its probe value, and whether axis 0 is the lane axis."""

    node: fx.Node
    value: Any
    wide: bool

    @property
    def rank(self) -> int:
        """Number of dims without the lane axis."""
        return self.value.dim() - int(self.wide)

    @property
    def shape(self) -> torch.Size:
        """The shape of one lane on the probe."""
        return self.value.shape[int(self.wide) :]

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype


@dataclass(frozen=True)
class LaneScalar:
    """A Python number that differs by lane, with the name of its placeholder."""

    name: str
    values: tuple[Any, ...]


class StrategyChoice(str):
    """The default strategy of a call that the user has not forced, with its alternatives."""

    primitive: str
    choices: tuple[str, ...]

    @classmethod
    def of(cls, name: str, primitive: str, choices: tuple[str, ...]) -> "StrategyChoice":
        choice = cls(name)
        choice.primitive, choice.choices = primitive, choices
        return choice


# Dtypes whose elementwise ops compute in float32 and round only the result.
HALF = (torch.bfloat16, torch.float16)


class Builder:
    def __init__(self, graph: fx.Graph, lanes: int, feed: Callable[[str, str], fx.Node]):
        self.graph = graph
        self.feed = feed  # (kind, key) -> placeholder node, created once
        self.n = Val(feed("n", "n"), lanes, wide=False)
        self.rng: Val | None = None
        self.emitted: list[fx.Node] = []
        self.strategy = ""  # the strategy of the rule, for explain()
        self.strategies: Mapping[str, str] = {}  # strategies forced by the user, by primitive
        self.random_sites = 0
        self.meta: dict[str, Any] = {}

    def choose(self, primitive: Any, auto: str, choices: Sequence[str] | None = None) -> str:
        """Return the strategy for a rule: the user's, if this primitive has it, else `auto`.

        In the second case it is a `StrategyChoice`, which tuning may replace by another of `choices`
        (default: all of the primitive) when the lane graph is timed.
        """
        name = primitive.__name__
        forced = self.strategies.get(name, self.strategies.get("*"))
        if forced in (choices or primitive.STRATEGIES):
            self.strategy = str(forced)
            return self.strategy
        self.strategy = auto
        return StrategyChoice.of(auto, name, tuple(choices or primitive.STRATEGIES))

    def random_site(self) -> int:
        """Return a new index for each random op, so that seeded ops draw different numbers."""
        self.random_sites += 1
        return self.random_sites

    def call(self, function: Callable[..., Any], *args: Any, wide: bool = True, **kwargs: Any) -> Val:
        """Evaluate `function` on the probe, then emit the call; `wide` tells whether the result has lanes."""
        value = function(*map_leaves(_value, args), **map_leaves(_value, kwargs))
        node = self.graph.call_function(function, map_leaves(_node, args), map_leaves(_node, kwargs))
        node.meta.update(self.meta)
        if isinstance(value, Tensor):
            node.meta["shape"] = tuple(value.shape)  # of the probe; only the number of lanes differs
        if any(isinstance(arg, StrategyChoice) for arg in args):
            # Sites of one kind and shape are tuned together.
            shapes = [tuple(a.shape) for a in vals_in(args) if is_tensor_val(a)]
            node.meta["site"] = f"{function.__name__} {shapes}"
            node.meta["rank"] = len(shapes[0])
        self.emitted.append(node)
        return Val(node, value, wide)

    def wide(self, x: Any) -> Any:
        """`x` with a lane axis: shared tensors are expanded without a copy, other values are unchanged."""
        return self.call(expand_lanes, x, self.n) if is_tensor_val(x) and not x.wide else x

    def aligned(self, x: Val, rank: int, beside: Val | None = None) -> Val:
        """Return a wide `x` with member rank `rank`, by new dims after the lane axis; see `lead`."""
        return self.call(lead, x, rank - x.rank, beside) if x.wide and rank > x.rank else x

    def alike(self, *values: Val) -> list[Val]:
        """Return all of them wide, and with the same member rank."""
        rank = max(x.rank for x in values)
        values = tuple(map(self.wide, values))
        return [self.aligned(x, rank, widest(values)) for x in values]

    def lane_tensor(self, scalar: LaneScalar, like: Val) -> Val:
        """Return a per-lane number as a tensor `[N]` with the dtype to which it promotes beside `like`.

        float32 beside 16-bit floats, where a Python number is not rounded before it is used.
        """
        tensor = scalar_tensor(scalar.values)
        dtype = tensor.dtype
        if tensor.is_floating_point():
            dtype = like.dtype if like.value.is_floating_point() else torch.get_default_dtype()
            dtype = torch.float32 if dtype in HALF else dtype
        elif dtype != torch.bool:
            dtype = like.dtype
        source = Val(self.feed("scalar", scalar.name), tensor, True)
        return self.call(torch.Tensor.to, source, device=like.value.device, dtype=dtype)

    def lane_values(self, scalar: LaneScalar) -> Val:
        """Return a per-lane number as a tuple of N Python numbers."""
        return Val(self.feed("scalar_values", scalar.name), scalar.values, True)

    def undo(self, mark: int) -> None:
        """Erase the nodes emitted since `mark`, newest first."""
        for node in reversed(self.emitted[mark:]):
            self.graph.erase_node(node)
        del self.emitted[mark:]


def map_leaves(leaf: Callable[[Any], Any], tree: Any) -> Any:
    """Nested arguments with `leaf(x)` for every x that is not a list, tuple or dict."""
    if isinstance(tree, dict):
        return {key: map_leaves(leaf, item) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        items = [map_leaves(leaf, item) for item in tree]
        return items if isinstance(tree, list) else tuple(items)
    return leaf(tree)


def leaves_in(tree: Any) -> Iterator[Any]:
    """Return the leaves of nested arguments, in order."""
    if not isinstance(tree, (list, tuple, dict)):
        yield tree
        return
    for item in tree.values() if isinstance(tree, dict) else tree:
        yield from leaves_in(item)


def vals_in(tree: Any) -> list[Any]:
    """Return every `Val` and `LaneScalar` in nested arguments."""
    return [x for x in leaves_in(tree) if isinstance(x, (Val, LaneScalar))]


def widest(values: Sequence[Val]) -> Val | None:
    """Return the first wide value of the largest rank, if there is one."""
    rank = max(x.rank for x in values)
    return next((x for x in values if x.wide and x.rank == rank), None)


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Val) else x


def _node(x: Any) -> Any:
    return x.node if isinstance(x, Val) else x


def is_tensor_val(x: Any) -> bool:
    return isinstance(x, Val) and isinstance(x.value, Tensor)
