"""The engine by itself, on a worker within this process."""

import pytest
import torch

from wide_compiler.workers.engine import Engine
from wide_compiler.workers.inprocess import InProcessPool
from wide_compiler.workers.shared_memory import read_payload
from wide_compiler.workers.templates import CONSTANT, NAMED, TENSOR
from wide_compiler.workers.worker_errors import NoWorkers, WorkerFailed


@pytest.fixture
def engine():
    engine = Engine(InProcessPool())
    yield engine
    engine.stop()


def zeros(engine, mesh, shape):
    number = next(engine.ids)
    dtype = {"dtype": (NAMED, "float32")}
    template = engine.new_template("aten.zeros.default", ((CONSTANT, shape),), dtype)
    engine.record("make", (number, template, mesh.number, None, None), mesh.workers, "zeros", (), (number,))
    return number


def test_every_engine_is_its_own():
    """What is remembered for one run of workers must not be taken for another's, even at the same address."""
    serials = set()
    for _ in range(20):
        engine = Engine(InProcessPool())
        serials.add(engine.serial)
        engine.stop()
        del engine
    assert len(serials) == 20


def fetched(answer):
    dtype, payload = answer
    return read_payload(payload, getattr(torch, dtype))


def test_values_are_freed_after_their_last_use(engine):
    mesh = engine.mesh((0,))
    number = zeros(engine, mesh, [3])
    assert torch.equal(fetched(engine.ask("fetch", (number,), mesh)), torch.zeros(3))
    engine.freed.append((mesh.workers, number))
    engine.flush()
    assert engine.ask_each("stats")[0]["live_tensors"] == 0
    engine.synchronize()
    assert len(engine.in_flight) < 5


def test_a_failure_is_raised_once_and_whatever_was_made_from_it_is_dead(engine):
    mesh = engine.mesh((0,))
    a, b = zeros(engine, mesh, [3]), zeros(engine, mesh, [4])
    mm = engine.new_template("aten.mm.default", ((TENSOR, 0), (TENSOR, 1)), {})
    out, later = next(engine.ids), next(engine.ids)
    engine.record("op", (mm, (a, b), (out,), ()), mesh.workers, "mm", (a, b), (out,))
    neg = engine.new_template("aten.neg.default", ((TENSOR, 0),), {})
    engine.record("op", (neg, (out,), (later,), ()), mesh.workers, "neg", (out,), (later,))
    with pytest.raises(WorkerFailed, match=r"mm at .*test_engine.py"):
        engine.synchronize()
    with pytest.raises(WorkerFailed, match="mm at"):
        engine.ask("fetch", (later,), mesh, inputs=(later,))
    assert torch.equal(fetched(engine.ask("fetch", (a,), mesh, inputs=(a,))), torch.zeros(3))


def test_nothing_after_the_end(engine):
    engine.stop()
    with pytest.raises(NoWorkers):
        engine.mesh((0,))
