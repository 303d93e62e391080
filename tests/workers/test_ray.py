"""The same workers in Ray actors. One local Ray for all tests here: starting one takes a while.

`GT_WORKERS=ray pytest tests/signals` runs all tests of signals on Ray workers.
"""

import builtins
import os
import random
import socket
import sys
import time

import pytest
import torch

import wide_compiler.signals as gt
from signals.placed import signal
from signals.soak import gone, setting, steps
from wide_compiler.signals import runtime
from wide_compiler.workers.ray import check_versions, versions

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="Ray clusters run on Linux")


@pytest.fixture(scope="module", autouse=True)
def _print_stays():
    """Ray puts a `print` of its own among the builtins, and leaves it there."""
    before = builtins.print
    yield
    builtins.print = before


@pytest.fixture(scope="module")
def cluster():
    gt.shutdown()
    ray.init(
        address="local",
        num_cpus=6,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}},
    )
    yield
    gt.shutdown()
    ray.shutdown()


@pytest.fixture
def two(cluster):
    gt.shutdown()
    gt.clear_configs()
    gt.ray_workers(2)
    signal("dp", [0, 1])
    yield list(runtime.engine().pool.pids)
    gt.shutdown()
    gt.clear_configs()
    assert nothing_left()


def nothing_left():
    """Are all actors dead, all placement groups removed, all resources free?"""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        groups = ray.util.placement_group_table().values()
        if all(g["state"] == "REMOVED" for g in groups) and ray.available_resources().get("CPU") == 6:
            return True
        time.sleep(0.2)
    return False


def test_training_death_and_restart_as_on_local_workers(two, tmp_path):
    model, optimizer, x = setting()
    on_ray = steps(model, optimizer, x, 8)
    gt.checkpoint(tmp_path, model=model, optimizer=optimizer)
    following = steps(model, optimizer, x, 4)
    victim = random.Random(3).randrange(2)
    with pytest.raises(gt.WorkerDied, match=f"worker {victim} died") as caught:
        steps(model, optimizer, x, 6, lambda i: i == 2 and os.kill(two[victim], 9))
        gt.debug.worker_stats()
    assert caught.value.worker == victim
    assert gone(two)
    gt.restart(tmp_path, model=model, optimizer=optimizer)
    assert steps(model, optimizer, x, 4) == following
    gt.shutdown()
    gt.cpu_workers(2)
    model, optimizer, x = setting()
    assert steps(model, optimizer, x, 8) == on_ray


def test_messages_of_a_step_stay_few(two):
    """Batches, not one remote call for each op: the actors' method is called once in their life."""
    model, optimizer, x = setting()
    posts = []
    pool = runtime.engine().pool
    post = pool.post
    pool.post = lambda worker, data: (posts.append(len(data)), post(worker, data))
    steps(model, optimizer, x, 10)
    ops = sum(gt.debug.worker_stats()[0]["instructions"].values())
    assert len(posts) < ops


def test_more_workers_than_there_is_room_for(cluster):
    gt.shutdown()
    with pytest.raises(
        gt.ClusterError, match=r"100 workers of 1 CPU each .* within 2 s.*CPU 6 in all, 6 free"
    ):
        gt.ray_workers(100, wait=2)
    assert nothing_left()


def test_an_address_where_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(gt.ClusterError, match=f"no Ray at 127.0.0.1:{port}.*ray start --head"):
            _connect(f"127.0.0.1:{port}")
        with pytest.raises(gt.ClusterError, match=r"no Ray at ray://127"):
            _connect(f"ray://127.0.0.1:{port}")
    with pytest.raises(gt.ClusterError, match=r"address must be"):
        _connect("somewhere")


def _connect(address):
    from wide_compiler.workers import ray as ours

    ours._reach(address)


def test_other_versions_over_there():
    mine = versions()
    assert mine["torch"] == torch.__version__.partition("+")[0]
    check_versions(0, mine)
    for name in mine:
        with pytest.raises(
            gt.ClusterError, match=f"worker 3 runs {name} 0.1, the script {name} {mine[name]}"
        ):
            check_versions(3, {**mine, name: "0.1"})


def test_other_torch_on_the_workers_machine(cluster, tmp_path):
    """A folder that says so, first on the actors' path: what `pip` of another machine would have written."""
    gt.shutdown()
    (tmp_path / "torch-1.0.dist-info").mkdir()
    (tmp_path / "torch-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n"
    )
    ray.shutdown()
    path = os.pathsep.join([str(tmp_path), *[p for p in sys.path if p]])
    ray.init(
        address="local",
        num_cpus=6,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    with pytest.raises(gt.ClusterError, match=r"worker 0 runs torch 1\.0, the script torch 2"):
        gt.ray_workers(1)
    assert nothing_left()


def test_ray_is_missing(monkeypatch):
    gt.shutdown()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'wide_compiler\[ray\]'"):
        gt.ray_workers(2)


@pytest.mark.parametrize("bad", [{"n": 0}, {"strategy": "ANY"}, {"cpus": 0}, {"wait": 0}, {"gpus": -1}])
def test_bad_arguments(bad):
    with pytest.raises(ValueError, match=r"must be|needs"):
        gt.ray_workers(**{"n": 2, **bad})


def test_the_environment_names_ray(monkeypatch):
    monkeypatch.setenv("GT_WORKERS", "ray://127.0.0.1:1")
    gt.shutdown()
    with pytest.raises(gt.ClusterError, match=r"no Ray at ray://127\.0\.0\.1:1"):
        ray.is_initialized() and ray.shutdown()
        gt.cpu_workers(2)
    monkeypatch.setenv("GT_WORKERS", "many")
    with pytest.raises(
        ValueError, match="GT_WORKERS must be a number, 'ray' or 'ray://host:port', got 'many'"
    ):
        gt.cpu_workers(2)
