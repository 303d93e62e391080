"""Snapshot: everything in Python that a capture depends on, and whether it is unchanged."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from .dict_versions import ARE_CHEAP, dict_version
from .reads import Array, Attribute, Entry, Flag, HeldTensor, Read, State, Table, same_items
from .tensors import versions

_CONTAINERS = (dict, list, set)


class Snapshot:
    """A set of reads, each with the value found first.

    `holds()` compares versions of dictionaries (about 50 ns each) and identities of other values (about 25 ns
    each). Values are compared only where this differs, so assigning an equal number is not a change.

    >>> from wide_compiler.guards.reads import Table
    >>> scale = {"factor": 2.0}
    >>> snapshot = Snapshot()
    >>> snapshot.note(Table, scale, path="scale")
    >>> before = snapshot.holds(); scale["factor"] = 3.0
    >>> before, snapshot.holds(), snapshot.why_not()
    (True, False, 'scale has changed')
    """

    def __init__(self) -> None:
        self.reads: dict[Any, Read] = {}
        self._quick: _QuickCheck | None = None

    def note(self, kind: type[Read], holder: Any, name: str = "", *, path: str) -> None:
        """Record a read, unless it is recorded already."""
        key = (kind, id(holder), name)
        if key not in self.reads:
            self.reads[key] = kind(holder, name, path)
            self._quick = None

    def without(self, owned: Collection[int]) -> "Snapshot":
        """Return a snapshot without reads from objects with these ids, and without random generators and
        iterators, since the call itself advances those."""
        return self.only(lambda read: id(read.holder) not in owned and not isinstance(read, State))

    def only(self, wanted: Callable[[Read], bool]) -> "Snapshot":
        """Return a snapshot of the reads for which `wanted` is true."""
        other = Snapshot()
        other.reads = {key: read for key, read in self.reads.items() if wanted(read)}
        return other

    def moved(self, originals: Mapping[int, Any]) -> "Snapshot":
        """Return a snapshot of the same reads from other objects, by the id of the object that was read.

        Reads from objects that are not in `originals` are dropped, and reads of tensor values, because the
        code that runs a module tracks its tensors.
        """
        other = Snapshot()
        for read in self.reads.values():
            target = originals.get(id(read.holder))
            if target is not None and not isinstance(read, (State, HeldTensor)):
                other.note(type(read), target, read.name, path=read.path)
        return other

    def joined(self, others: Collection["Snapshot"]) -> "Snapshot":
        """Return a snapshot with the reads of this one and of `others`."""
        joined = Snapshot()
        for snapshot in (self, *others):
            joined.reads |= snapshot.reads
        return joined

    def holds(self) -> bool:
        """Return whether nothing has changed. Takes a few microseconds."""
        if self._quick is None:
            self._quick = _QuickCheck(list(self.reads.values()))
        try:
            if self._quick.holds():
                return True
        except (KeyError, AttributeError, ValueError, RuntimeError):
            pass  # an object was deleted; `first_change` finds it
        if self.first_change() is not None:
            return False
        self._quick = None  # equal values have replaced the recorded ones
        return True

    def first_change(self) -> Read | None:
        """Return the first read with a different value, or None. Equal new values replace recorded ones."""
        self._follow_emptied()
        for read in self.reads.values():
            now = read.now()
            if now is not read.value:
                if not read.same(now):
                    return read
                read.value = now
            elif isinstance(read, Array) and not read.same(now):
                return read
        return None

    def _follow_emptied(self) -> None:
        """Where an empty container was found and another empty one lies now, watch that one from here on."""
        for read in [read for read in self.reads.values() if isinstance(read, (Entry, Attribute))]:
            now = read.now()
            if now is read.value or type(now) not in _CONTAINERS or type(now) is not type(read.value) or now:
                continue
            contents = [key for key, other in self.reads.items() if other.holder is read.value]
            if contents and not any(self.reads[key].value for key in contents):
                read.value = now
                for other in [self.reads.pop(key) for key in contents]:
                    self.note(type(other), now, other.name, path=other.path)

    def changed_flag(self) -> Read | None:
        """Return the first setting of the process with a different value, or None."""
        flags = (read for read in self.reads.values() if isinstance(read, Flag))
        return next((flag for flag in flags if not flag.same(flag.now())), None)

    def changes(self, stores: Collection[str] | None) -> list[Read]:
        """Return the reads whose values have changed.

        Args:
            stores: the names that the code in question assigns; None for any name. A read of another name was
                changed by another thread, so its new value is recorded instead of returned.
        """
        changed = []
        for read in self.reads.values():
            now = read.now()
            if not read.same(now):
                if _can_be_set(read, stores):
                    changed.append(read)
                else:
                    read.value = now
                    self._quick = None
        return changed

    def why_not(self) -> str:
        """Return a message that names what has changed; '' if nothing has."""
        changed = self.first_change()
        return "" if changed is None else f"{changed.path} has changed"

    def put_back(self, stores: Collection[str] | None) -> None:
        """Undo the changes that code which assigns the names in `stores` (None: any name) can have made."""
        for read in reversed(self.reads.values()):
            now = read.now()
            if not read.same(now) and (_can_be_set(read, stores) or type(now).__name__ == "FakeTensor"):
                read.put_back()


def _can_be_set(read: Read, stores: Collection[str] | None) -> bool:
    if stores is None or not isinstance(read, (Entry, Attribute)) or read.name == "cell_contents":
        return True
    return read.name in stores


# From this many reads in one dictionary on, its version is compared instead of each entry.
_MANY = 3


class _QuickCheck:
    """Fast check of reads: True is certain; False may mean that an equal value was assigned."""

    def __init__(self, reads: list[Read]):
        tables: dict[int, list[Read]] = {}
        for read in reads:
            if isinstance(read, Entry):
                tables.setdefault(id(read.table), []).append(read)
        large = [entries for entries in tables.values() if ARE_CHEAP and len(entries) >= _MANY]
        entries = [read for some in large for read in some]
        known = {*map(id, entries)}
        self.tables = [some[0].table for some in large]  # type: ignore[attr-defined]
        self.versions: list[Any] = []
        self.entries = _compiled(entries)
        self.others = _compiled([read for read in reads if id(read) not in known])

    def holds(self) -> bool:
        now = versions(self.tables)
        if now != self.versions:
            if not self.entries():
                return False
            self.versions = now
        return self.others()


def _compiled(reads: list[Read]) -> Callable[[], bool]:
    """Return one generated function that compares all reads.

    It has a line per read, such as `if not (h3['scale'] is v3)`, which takes about 25 ns.
    """
    world: dict[str, Any] = {"get_attribute": object.__getattribute__, "version": dict_version}
    world["same_items"] = same_items
    lines = []
    for number, read in enumerate(reads):
        term, holder = read.term()
        if not term:
            term, holder = "holder.same(holder.now())", read
        world |= {f"h{number}": holder, f"v{number}": read.value}
        term = term.replace("holder", f"h{number}").replace("is value", f"is v{number}")
        term = term.replace("== value", f"== v{number}").replace(", value)", f", v{number})")
        if isinstance(read, Table):
            world[f"n{number}"] = read.version
            term = term.replace("== noted", f"== n{number}")
        lines.append(f"    if not ({term}): return False\n")
    text = f"def holds():\n{''.join(lines)}    return True\n"
    exec(compile(text, "<snapshot>", "exec"), world)
    return world["holds"]
