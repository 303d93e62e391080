"""Snapshots of many reads in one dictionary: its version is asked for, and entries only after a write."""

import pytest

from wide_compiler.guards import Snapshot
from wide_compiler.guards.reads import ClassEntry, Entry

NAMES = ("scale", "shift", "power", "absent")


class Settings:
    scale, shift, power = 2.0, 1.0, 3


def of_dictionary():
    table = {"scale": 2.0, "shift": 1.0, "power": 3, "other": 0}
    return Entry, table, table.__setitem__, table.__delitem__


def of_class():
    kind = type("Own", (Settings,), dict(vars(Settings)))
    return ClassEntry, kind, lambda name, value: setattr(kind, name, value), lambda name: delattr(kind, name)


@pytest.mark.parametrize("make", [of_dictionary, of_class])
def test_writes_to_a_table_of_many_reads(make):
    kind, holder, write, delete = make()
    snapshot = Snapshot()
    for name in NAMES:
        snapshot.note(kind, holder, name, path=name)
    assert snapshot.holds() and snapshot.holds()
    write("other", 5)  # which nobody has read
    assert snapshot.holds()
    write("scale", float("2.0"))  # an equal number, set anew
    assert snapshot.holds()
    write("shift", 7.0)
    assert not snapshot.holds() and snapshot.why_not() == "shift has changed"
    write("shift", 1.0)
    assert snapshot.holds()
    write("absent", None)
    assert not snapshot.holds() and snapshot.why_not() == "absent has changed"
    delete("absent")
    assert snapshot.holds()
    delete("power")
    assert not snapshot.holds()
