"""Dependencies between the nodes of a captured graph; grouping of calls, and an order of execution."""

import graphlib
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from torch import fx

from ..capture.aliases import root_of, written_args


class Dependencies:
    """Predecessors of each node: the nodes it reads, and earlier accesses to memory it reads or writes."""

    def __init__(self, graph: fx.Graph):
        self.nodes = [node for node in graph.nodes if node.op != "output"]
        self.before: dict[fx.Node, set[fx.Node]] = {node: set(node.all_input_nodes) for node in self.nodes}
        touching: dict[fx.Node, list[fx.Node]] = {}
        last_write: dict[fx.Node, fx.Node] = {}
        for node in self.nodes:
            for root in {root_of(used) for used in node.all_input_nodes}:
                if root in last_write:
                    self.before[node].add(last_write[root])
                touching.setdefault(root, []).append(node)
            for root in {root_of(used) for used in written_args(node)}:
                self.before[node] |= {other for other in touching[root] if other is not node}
                last_write[root] = node

    def in_turn(self, nodes: Sequence[fx.Node]) -> None:
        """Keep these nodes in their order."""
        for first, second in itertools.pairwise(nodes):
            self.before[second].add(first)

    def barrier(self, node: fx.Node) -> None:
        """Keep every node before this one before it, and every later node after it."""
        computed = [other for other in self.nodes if other.op != "placeholder"]
        place = computed.index(node)
        self.before[node] |= set(computed[:place])
        for other in computed[place + 1 :]:
            self.before[other].add(node)

    def order(self, group_of: Mapping[fx.Node, int]) -> list[list[fx.Node]]:
        """Return a topological order of the nodes, with each group as one entry."""
        unit_of: dict[fx.Node, list[fx.Node]] = {}
        groups: dict[int, list[fx.Node]] = {}
        for node in self.nodes:
            number = group_of.get(node)
            unit_of[node] = groups.setdefault(number, []) if number is not None else []
            unit_of[node].append(node)
        place = {node: i for i, node in enumerate(self.nodes)}
        first = {node: place[unit[0]] for node, unit in unit_of.items()}  # units are identified by it
        units = {first[node]: unit for node, unit in unit_of.items()}
        waits = {
            number: {first[b] for node in unit for b in self.before[node]} - {number}
            for number, unit in units.items()
        }
        # `Joining` makes no groups that depend on each other, so there is no cycle.
        return [units[number] for number in graphlib.TopologicalSorter(waits).static_order()]


class Joining:
    """Groups calls with equal keys, such that neither calls of a group nor groups depend on each other.

    Args:
        order: units of a graph in topological order.
        before: for each unit, the units it depends on.
        key: for each unit that is a call, a key; calls with equal keys may be joined.
    """

    def __init__(
        self,
        order: Sequence[Hashable],
        before: Mapping[Any, set[Any]],
        key: Mapping[Any, Any],
    ):
        self.key, self.bit = key, {call: 1 << i for i, call in enumerate(u for u in order if u in key)}
        reached: dict[Any, int] = {}  # for each unit, a bit set of the calls it depends on
        level: dict[Any, int] = {}
        for unit in order:
            reached[unit] = level[unit] = 0
            for other in before[unit]:
                reached[unit] |= reached[other] | self.bit.get(other, 0)
                level[unit] = max(level[unit], level[other])
            level[unit] += unit in key
        self.waits_for = {call: reached[call] for call in self.bit}
        by_level: dict[Any, list[Any]] = {}
        for call in self.bit:
            by_level.setdefault((level[call], key[call]), []).append(call)
        # Calls of one level do not depend on each other, nor do groups within one level each.
        self.members = list(by_level.values())
        self.bits = [sum(self.bit[call] for call in group) for group in self.members]
        self.behind = [0] * len(self.members)
        for i in sorted(range(len(self.members)), key=lambda i: level[self.members[i][0]]):
            for call in self.members[i]:
                self.behind[i] |= self.waits_for[call]
            for j, bits in enumerate(self.bits):
                if j != i and self.behind[i] & bits:
                    self.behind[i] |= self.behind[j] | bits
        self._join_across_levels()
        joined = [sorted(group, key=self.bit.__getitem__) for group in self.members if group]
        self.groups = [group for group in joined if len(group) > 1]
        self.loose = [group[0] for group in joined if len(group) == 1]
        self.stage = self._stages()

    def _join_across_levels(self) -> None:
        """Add calls that are single at their level to the first independent group with the same key."""
        of_key: dict[Any, list[int]] = {}
        for i, group in enumerate(self.members):
            of_key.setdefault(self.key[group[0]], []).append(i)
        for alike in of_key.values():
            for i in alike:
                for j in alike:
                    apart = self.behind[i] & self.bits[j] or self.behind[j] & self.bits[i]
                    if j != i and len(self.members[i]) == 1 and self.members[j] and not apart:
                        self._join(i, j)

    def _join(self, i: int, j: int) -> None:
        self.members[j] += self.members[i]
        self.bits[j] |= self.bits[i]
        self.behind[j] |= self.behind[i]
        self.members[i], self.bits[i], self.behind[i] = [], 0, 0
        for k, behind in enumerate(self.behind):
            if k != j and behind & self.bits[j]:
                self.behind[k] |= self.behind[j] | self.bits[j]

    def _stages(self) -> dict[Any, int]:
        """For each call, the length of the longest chain of groups that ends in its group."""
        stages: dict[Any, int] = {}
        done: list[tuple[int, int]] = []
        for i in sorted(range(len(self.members)), key=lambda i: self.behind[i].bit_count()):
            if self.members[i]:
                stage = 1 + max((s for bits, s in done if self.behind[i] & bits), default=0)
                done.append((self.bits[i], stage))
                stages |= dict.fromkeys(self.members[i], stage)
        return stages

    def why_not(self, calls: Sequence[Any]) -> str:
        """Return why ungrouped calls with one key were not joined."""
        alike = [call for call in self.bit if self.key[call] == self.key[calls[0]]]
        return why_apart(calls, alike, self._depend)

    def _depend(self, a: Any, b: Any) -> bool:
        return bool(self.waits_for[a] & self.bit[b] or self.waits_for[b] & self.bit[a])


def why_apart(calls: Sequence[Any], alike: Sequence[Any], depend: Callable[[Any, Any], bool]) -> str:
    """Return why calls were not joined with each other or with others of their key, `alike`."""
    if not all(depend(a, b) for a in calls for b in alike if a != b):
        return "joining it would make two groups depend on each other"
    return "each depends on the previous one" if len(calls) > 1 else "it depends on the others, or they on it"
