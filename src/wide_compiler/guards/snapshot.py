"""Snapshot: everything in Python that a capture rests on, and whether it still holds."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from .dict_versions import ARE_CHEAP, dict_version
from .reads import Array, Attribute, Entry, Flag, Numbers, Read, State, Table, same_items
from .tensors import versions

_CONTAINERS = (dict, list, set)


class Snapshot:
    """Reads, each with the value that was found first.

    `holds()` asks whether dictionaries were written to since, about 50 ns each, and compares the identities
    of the rest, about 25 ns a read; only where one differs are values compared, so that an equal number set
    anew is no change.

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
        self._quick: _Comparison | None = None

    def note(self, kind: type[Read], holder: Any, name: str = "", *, path: str) -> None:
        """Remember a read, unless it is known."""
        key = (kind, id(holder), name)
        if key not in self.reads:
            self.reads[key] = kind(holder, name, path)
            self._quick = None

    def without(self, owned: Collection[int]) -> "Snapshot":
        """The same without what is read in objects of these ids, and without generators: a call that uses
        one has changed it."""
        return self.only(lambda read: id(read.holder) not in owned and not isinstance(read, State))

    def only(self, wanted: Callable[[Read], bool]) -> "Snapshot":
        """Some of the reads."""
        other = Snapshot()
        other.reads = {key: read for key, read in self.reads.items() if wanted(read)}
        return other

    def moved(self, originals: Mapping[int, Any]) -> "Snapshot":
        """The reads in some objects, as reads in others: `originals` says by id which stands for which.

        A module's own tensors are left out: whoever runs the module follows them.
        """
        other = Snapshot()
        for read in self.reads.values():
            target = originals.get(id(read.holder))
            if target is not None and not isinstance(read, (State, Numbers)):
                other.note(type(read), target, read.name, path=read.path)
        return other

    def joined(self, others: Collection["Snapshot"]) -> "Snapshot":
        """The reads of several."""
        joined = Snapshot()
        for snapshot in (self, *others):
            joined.reads |= snapshot.reads
        return joined

    def holds(self) -> bool:
        """Is everything what it was? A few microseconds."""
        if self._quick is None:
            self._quick = _Comparison(list(self.reads.values()))
        try:
            if self._quick.holds():
                return True
        except (KeyError, AttributeError, ValueError, RuntimeError):
            pass  # something is gone: `first_change` says what
        if self.first_change() is not None:
            return False
        self._quick = None  # equal values were taken over
        return True

    def first_change(self) -> Read | None:
        """The first read that gives something else now; an equal value set anew is taken over."""
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
        """The first of the process's settings that is another now."""
        flags = (read for read in self.reads.values() if isinstance(read, Flag))
        return next((flag for flag in flags if not flag.same(flag.now())), None)

    def changes(self, stores: Collection[str] | None) -> list[Read]:
        """The reads that give something else now. Of what code that sets the names in `stores` (None: any)
        cannot have changed the new value is taken over: another thread has set it."""
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
        """What has changed, by its path; '' if nothing has."""
        changed = self.first_change()
        return "" if changed is None else f"{changed.path} has changed"

    def put_back(self, stores: Collection[str] | None) -> None:
        """Undo the changes since the reads that code which sets these names (None: any) can have made."""
        for read in reversed(self.reads.values()):
            now = read.now()
            if not read.same(now) and (_can_be_set(read, stores) or type(now).__name__ == "FakeTensor"):
                read.put_back()


def _can_be_set(read: Read, stores: Collection[str] | None) -> bool:
    if stores is None or not isinstance(read, (Entry, Attribute)) or read.name == "cell_contents":
        return True
    return read.name in stores


# Reads in one dictionary from which on its version is asked for, and not each of them.
_MANY = 3


class _Comparison:
    """Whether reads give the very objects that they gave; a false answer may be an equal value."""

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
    """One function that compares all reads.

    Its text is written here, a line for each read (`if not (h3['scale'] is v3)`): so a read takes 25 ns.
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
