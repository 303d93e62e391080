"""Hosts in network namespaces, joined as one Ray cluster: Linux, root and iproute2 are needed.

    python benchmarks/hosts.py --hosts 2
    python benchmarks/hosts.py --hosts 4

A training on workers of all hosts gives the losses of local workers; then a host is cut off in the middle of
a step: `WorkerDied` follows within seconds, and a restart from the checkpoint, on the hosts that are left,
gives the losses of the run without the cut. Prints one JSON object.
"""

import argparse
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

NET = "10.77.0"
PORT = 6379
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Hosts:
    """`count` namespaces on one bridge, each with a loopback and one address."""

    def __init__(self, count: int) -> None:
        self.names = [f"wide{k}" for k in range(count)]
        self.addresses = [f"{NET}.{k + 1}" for k in range(count)]
        self.ended = False

    def __enter__(self) -> "Hosts":
        self.remove()
        ip("link", "add", "widebr", "type", "bridge")
        ip("link", "set", "widebr", "up")
        ip("addr", "add", f"{NET}.254/24", "dev", "widebr")  # so that this script can look at the first host
        for name, address in zip(self.names, self.addresses, strict=True):
            ip("netns", "add", name)
            ip("link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"v{name}", "master", "widebr", "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *error: object) -> None:
        self.ended = True
        self.remove()

    def remove(self) -> None:
        for name in self.names:
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            subprocess.run(["ip", "link", "del", f"v{name}"], capture_output=True)
        subprocess.run(["ip", "link", "del", "widebr"], capture_output=True)

    def run(self, host: int, command: list[str], **options: object) -> subprocess.Popen:
        return subprocess.Popen(["ip", "netns", "exec", self.names[host], *command], **options)  # type: ignore

    def cut(self, host: int) -> None:
        self.ended = True
        ip("link", "set", f"v{self.names[host]}", "down")

    def start_ray(self, cpus: int, folder: str) -> None:
        ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", f"--num-cpus={cpus}"]
        ray += ["--object-store-memory=100000000"]
        # Ports that are known need not be waited for, which on a busy machine takes longer than Ray waits.
        ports = {"dashboard-agent-grpc": 52001, "dashboard-agent-listen": 52002, "runtime-env-agent": 52003}
        ray += [f"--{name}-port={port}" for name, port in ports.items()] + ["--metrics-export-port=52004"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        head = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
        head += [f"--system-config={json.dumps(HEALTH)}"]
        for host, address in enumerate(self.addresses):
            where = head if host == 0 else [f"--address={self.addresses[0]}:{PORT}"]
            command = [*ray, f"--node-ip-address={address}", *where]
            started = self.run(host, command, **quiet)
            if host == 0:
                _wait_for(address)
            else:
                threading.Thread(target=self._keep, args=(started, host, command), daemon=True).start()

    def _keep(self, started: subprocess.Popen, host: int, command: list[str]) -> None:
        """On a busy machine Ray may give up on its own agents: start it again until the host is cut off."""
        while not self.ended:
            started.wait()
            if not self.ended:
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                started = self.run(host, command, **quiet)


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection((address, PORT), timeout=1).close()
            return
        time.sleep(0.5)
    sys.exit(f"no Ray at {address}:{PORT} within 120 s")


def drive(hosts: int, workers: int) -> None:
    """The script on the first host."""
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "tests")  # not this folder: it has a signals.py
    import ray

    import wide_compiler.signals as gt
    from signals.placed import signal
    from signals.soak import setting, steps

    deadline = time.monotonic() + 180
    while not ray.is_initialized():
        try:
            ray.init(address=f"{NET}.1:{PORT}", log_to_driver=False)
        except (ConnectionError, RuntimeError):
            assert time.monotonic() < deadline
            time.sleep(2)
    while len([n for n in ray.nodes() if n["Alive"]]) < hosts:
        assert time.monotonic() < deadline, ray.nodes()
        time.sleep(0.5)
    signal("dp", list(range(workers)))
    gt.ray_workers(workers, strategy="SPREAD", wait=60)
    where = {n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}
    model, optimizer, x = setting()
    expected = steps(model, optimizer, x, 12)
    model, optimizer, x = setting()
    done = steps(model, optimizer, x, 6)
    with tempfile.TemporaryDirectory() as folder:
        gt.checkpoint(folder, model=model, optimizer=optimizer)
        print("cut", flush=True)
        sys.stdin.readline()
        begin = time.monotonic()
        died = ""
        try:
            while time.monotonic() - begin < 100:
                steps(model, optimizer, x, 1)
        except gt.WorkerDied as error:
            died = str(error)
        heard = time.monotonic() - begin
        begin = time.monotonic()
        gt.restart(folder, model=model, optimizer=optimizer)
        back = time.monotonic() - begin
        again = done + steps(model, optimizer, x, 6)
    gt.shutdown()
    signal("dp", list(range(workers)))
    gt.cpu_workers(workers)
    local = steps(*setting(), 12)
    print(
        json.dumps(
            {
                "hosts": sorted(where),
                "workers": workers,
                "equal_to_local_workers": local == expected,
                "worker_died_after_s": round(heard, 1),
                "error": died[:300],
                "restart_s": round(back, 1),
                "equal_after_restart": again == expected,
            }
        ),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(options.hosts, options.workers)
        return
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))  # one for all hosts
    with tempfile.TemporaryDirectory(prefix="wr") as folder, Hosts(options.hosts) as hosts:
        hosts.start_ray(options.workers, folder)
        command = [
            sys.executable,
            __file__,
            "--drive",
            f"--hosts={options.hosts}",
            f"--workers={options.workers}",
        ]
        script = hosts.run(0, command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        assert script.stdin is not None and script.stdout is not None
        for line in script.stdout:
            if line.strip() == "cut":
                hosts.cut(options.hosts - 1)
                script.stdin.write("go\n")
                script.stdin.flush()
            else:
                print(line, end="", flush=True)
        sys.exit(script.wait())


if __name__ == "__main__":
    main()
