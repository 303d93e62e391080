"""Sites of a lane graph, where one of several strategies is used, and graphs with other strategies."""

from collections.abc import Mapping
from dataclasses import replace

from torch import fx

from ..primitives.chain import find_chains, fuse_activations, fuse_chains
from ..primitives.conv_norm import fuse_conv_norms, wide_conv_norm
from ..primitives.joined_linear import find_joinable, join_products
from ..widen import LaneGraph
from ..widen.builder import StrategyChoice

# Pseudo-sites that span several ops, such as all layers of a small MLP in one kernel.
CHAINS = "chains of linear layers"
JOINED = "linear layers of one input"


def sites(graph: LaneGraph, cuda: bool = False) -> dict[str, StrategyChoice]:
    """Return each kind of site (op and shapes) -> the strategy used there, with its alternatives."""
    found: dict[str, StrategyChoice] = {}
    for node in graph.module.graph.nodes:
        if "site" in node.meta:
            found[node.meta["site"]] = next(a for a in node.args if isinstance(a, StrategyChoice))
    if cuda and find_chains(graph.module.graph):
        found[CHAINS] = StrategyChoice.of("apart", CHAINS, ("apart", "fused"))
    if cuda and find_joinable(graph.module.graph):
        found[JOINED] = StrategyChoice.of("apart", JOINED, ("apart", "joined"))
    return found


def with_strategies(graph: LaneGraph, taken: Mapping[str, str], gradients: bool = True) -> LaneGraph:
    """Return the lane graph with other strategies at some sites. Raise KeyError if a site lacks one.

    Without `gradients`, kernels may be fused with the ops that follow.
    """
    known = sites(graph, cuda=True)
    for site, strategy in taken.items():
        if strategy not in known[site].choices:
            raise KeyError(f"{site} cannot run as {strategy!r}")
    copied = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    strategies: dict[str, str] = {}
    for node in graph.module.graph.nodes:
        new = env[node] = copied.node_copy(node, lambda n: env[n])
        own = taken.get(node.meta.get("site", ""))
        if own is not None:
            new.args = tuple(
                StrategyChoice.of(own, a.primitive, a.choices) if isinstance(a, StrategyChoice) else a
                for a in new.args
            )
            strategies[node.name] = own
    if taken.get(JOINED) == "joined":
        strategies |= {node.name: "joined" for group in find_joinable(copied) for node in group}
        join_products(copied)
    if taken.get(CHAINS) == "fused":
        for links in find_chains(copied):
            strategies |= {node.name: "chain" for link in links for node in (link[0], link[2])}
        fuse_chains(copied)
    fuse_activations(copied)
    if not gradients:
        fuse_conv_norms(copied)
    rows = [
        replace(row, strategy=next((strategies[n] for n in row.nodes if n in strategies), row.strategy))
        for row in graph.rows
    ]
    return replace(graph, module=fx.GraphModule(graph.module, copied), rows=rows)


def channels_last_weights(graph: LaneGraph) -> set[str]:
    """Return the states that are used only as weights of convolutions that want channels last."""
    wanting: set[fx.Node] = set()
    for node in graph.module.graph.nodes:
        chosen = [a for a in node.args if isinstance(a, StrategyChoice)]
        last = any(a == "channels_last" or a.startswith("implicit") for a in chosen)
        if last or node.target is wide_conv_norm:
            weight = node.args[1]
            if isinstance(weight, fx.Node) and len(weight.users) == 1:
                wanting.add(weight)
    placeholders = [node for node in graph.module.graph.nodes if node.op == "placeholder"]
    return {
        key
        for node, (kind, key) in zip(placeholders, graph.feeds, strict=True)
        if kind == "state" and key in graph.wide_states and node in wanting
    }
