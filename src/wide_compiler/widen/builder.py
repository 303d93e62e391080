"""The builder: evaluates each call on probe values, then emits it into the lane graph.

The probe is a few lanes (two, where there are two) with real numbers. A rule that raises, or gives another
result than the member's own op on each lane, is seen at its node, before anything depends on it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from .helpers import expand_lanes
from .lane_graph import scalar_tensor


@dataclass
class Val:
    """A value of the lane graph: its node, its probe value, and whether axis 0 is the lane axis."""

    node: fx.Node
    value: Any
    wide: bool

    @property
    def rank(self) -> int:
        """Dimensions without the lane axis: the rank the member sees."""
        return self.value.dim() - int(self.wide)

    @property
    def shape(self) -> torch.Size:
        """The member's shape on the probe."""
        return self.value.shape[int(self.wide) :]

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype


@dataclass(frozen=True)
class LaneScalar:
    """A Python number that differs by lane, known by the name of its placeholder."""

    name: str
    values: tuple[Any, ...]


class Choice(str):
    """A strategy that nobody has forced: the name of the one taken, and those it was taken from."""

    primitive: str
    choices: tuple[str, ...]

    @classmethod
    def of(cls, name: str, primitive: str, choices: tuple[str, ...]) -> "Choice":
        choice = cls(name)
        choice.primitive, choice.choices = primitive, choices
        return choice


# Precisions in which elementwise ops compute in float32, and round their result only.
HALF = (torch.bfloat16, torch.float16)


class Builder:
    def __init__(self, graph: fx.Graph, lanes: int, feed: Callable[[str, str], fx.Node]):
        self.graph = graph
        self.feed = feed  # (kind, key) -> placeholder node, made once
        self.n = Val(feed("n", "n"), lanes, wide=False)
        self.rng: Val | None = None
        self.emitted: list[fx.Node] = []
        self.strategy = ""  # which strategy the rule took, for explain()
        self.strategies: Mapping[str, str] = {}  # strategies the user forced, by primitive
        self.random_sites = 0
        self.meta: dict[str, Any] = {}

    def choose(self, primitive: Any, auto: str, choices: Sequence[str] | None = None) -> str:
        """The strategy a rule should take: the user's, where this primitive has it, else `auto`.

        In the second case it is a `Choice`, which tuning may replace by another of `choices` (by default: all
        that the primitive has) once the lane graph can be timed.
        """
        name = primitive.__name__
        forced = self.strategies.get(name, self.strategies.get("*"))
        if forced in (choices or primitive.STRATEGIES):
            self.strategy = str(forced)
            return self.strategy
        self.strategy = auto
        return Choice.of(auto, name, tuple(choices or primitive.STRATEGIES))

    def random_site(self) -> int:
        """A number for each place that draws random numbers, so that seeded places draw differently."""
        self.random_sites += 1
        return self.random_sites

    def call(self, function: Callable[..., Any], *args: Any, wide: bool = True, **kwargs: Any) -> Val:
        """Evaluate `function` on the probe, then emit the call. `wide` tells what the result is."""
        value = function(*map_leaves(_value, args), **map_leaves(_value, kwargs))
        node = self.graph.call_function(function, map_leaves(_node, args), map_leaves(_node, kwargs))
        node.meta.update(self.meta)
        if isinstance(value, Tensor):
            node.meta["shape"] = tuple(value.shape)  # on the probe: lanes differ, shapes of a lane do not
        if any(isinstance(arg, Choice) for arg in args):
            # Sites of one kind and shape are tuned as one.
            shapes = [tuple(a.shape) for a in vals_in(args) if is_tensor_val(a)]
            node.meta["site"] = f"{function.__name__} {shapes}"
            node.meta["rank"] = len(shapes[0])
        self.emitted.append(node)
        return Val(node, value, wide)

    def wide(self, x: Any) -> Any:
        """`x` with a lane axis: shared tensors are expanded (no copy), None and wide values pass."""
        if not isinstance(x, Val) or x.wide:
            return x
        return self.call(expand_lanes, x, self.n)

    def aligned(self, x: Val, rank: int) -> Val:
        """A wide `x` whose member rank is raised to `rank` by new dims right behind the lane axis."""
        for _ in range(rank - x.rank if x.wide else 0):
            x = self.call(torch.unsqueeze, x, 1)
        return x

    def lane_tensor(self, scalar: LaneScalar, like: Val) -> Val:
        """A per-lane number as a `[N]` tensor that promotes like the number itself would beside `like`; but
        float32 beside 16 bits, in which a number is not rounded before it is used."""
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
        """A per-lane number as a tuple of N Python numbers."""
        return Val(self.feed("scalar_values", scalar.name), scalar.values, True)

    def undo(self, mark: int) -> None:
        """Erase what was emitted since `mark`, newest first."""
        for node in reversed(self.emitted[mark:]):
            self.graph.erase_node(node)
        del self.emitted[mark:]


def map_leaves(leaf: Callable[[Any], Any], tree: Any) -> Any:
    """Nested arguments with `leaf(x)` for every x in them that is no list, tuple or dict."""
    if isinstance(tree, dict):
        return {key: map_leaves(leaf, item) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        items = [map_leaves(leaf, item) for item in tree]
        return items if isinstance(tree, list) else tuple(items)
    return leaf(tree)


def leaves_in(tree: Any) -> Iterator[Any]:
    """Every such x, in order."""
    if not isinstance(tree, (list, tuple, dict)):
        yield tree
        return
    for item in tree.values() if isinstance(tree, dict) else tree:
        yield from leaves_in(item)


def vals_in(tree: Any) -> list[Any]:
    """Every `Val` and `LaneScalar` in nested arguments."""
    return [x for x in leaves_in(tree) if isinstance(x, (Val, LaneScalar))]


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Val) else x


def _node(x: Any) -> Any:
    return x.node if isinstance(x, Val) else x


def is_tensor_val(x: Any) -> bool:
    return isinstance(x, Val) and isinstance(x.value, Tensor)
