"""Look at running scripts from outside: traces, pictures, the table, the page in a real browser."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from rich.console import Console
from typer.testing import CliRunner

import wide_compiler.signals as gt
from wide_compiler.cli import app
from wide_compiler.observe import attach, top
from wide_compiler.observe.attach import Span
from wide_compiler.observe.blocks import blocks, busy, typical_window
from wide_compiler.observe.trace_file import WorkerTrace, chrome, read, write
from wide_compiler.signals import runtime


def run(*args):
    return CliRunner().invoke(app, ["signals", *args])


@pytest.fixture(scope="module")
def scripts():
    """Starts the scripts of `watched` on first use; each has taken some steps before it is handed out."""
    gt.shutdown()
    started = {}
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}

    def start(name):
        if name not in started:
            script = subprocess.Popen(
                [sys.executable, "-m", "observe.watched", name], stdout=subprocess.PIPE, text=True, env=env
            )
            started[name] = script
            for _ in range(4):
                assert script.stdout.readline().strip() == "step"
            # Somebody has to read on: a full pipe would stop it.
            subprocess.Popen(["cat"], stdin=script.stdout, stdout=subprocess.DEVNULL)
        return started[name].pid

    yield start
    for script in started.values():
        script.kill()
        script.wait()
        script.stdout.close()


def test_a_trace_of_a_pipeline_tells_stages_and_passes_apart(scripts, tmp_path):
    pid = scripts("pipeline")
    told = run("trace", "-s", "3", "--dir", str(tmp_path / "traces"), "--pid", str(pid))
    assert told.exit_code == 0, told.output
    (path,) = (tmp_path / "traces").glob("trace_*.log")
    trace = read([path])
    where = {}
    for s in trace.spans:
        if s.op in ("aten.mm.default", "aten.addmm.default"):  # views run where their memory lies
            where.setdefault((s.signal, s.way), set()).add(s.worker)
    assert where["stage_1", "forward"] == {0, 1} and where["stage_2", "forward"] == {2, 3}
    assert where["stage_1_backward", "backward"] == {2, 3}
    assert where["stage_2_backward", "backward"] == {0, 1}
    assert any(s.at.endswith(".py:33") or "watched.py" in s.at for s in trace.spans)
    assert all(s.end >= s.start for s in trace.spans)
    picture, document = tmp_path / "timeline.png", tmp_path / "timeline.json"
    for output in (picture, document):
        told = run("visualize", str(path), "--output", str(output))
        assert told.exit_code == 0, told.output
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    events = json.loads(document.read_text())["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X"}
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {
        f"worker {w}" for w in range(4)
    }
    assert {e["cat"] for e in events if e["ph"] == "X"} >= {"forward", "backward", "transfer"}
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")


def test_the_modules_of_the_spec(scripts, tmp_path):
    pid = scripts("pipeline")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    base = [sys.executable, "-m"]
    trace = [*base, "wide_compiler.signals.scripts.trace", "-s", "1", "--dir", "traces", "-p", str(pid)]
    subprocess.run(trace, cwd=tmp_path, env=env, check=True)
    (file,) = (tmp_path / "traces").glob("*.log")
    draw = [*base, "wide_compiler.signals.scripts.visualize", str(file), "--output", "timeline.png"]
    subprocess.run(draw, cwd=tmp_path, env=env, check=True)
    assert (tmp_path / "timeline.png").is_file()


def test_top(scripts):
    pid = scripts("pipeline")
    _, path = attach.choose(pid)
    rates = top.Rates()
    for count, frame in enumerate(attach.frames(path)):
        rates.add(frame)
        rows = rates.rows()
        if count > 12 and len(rows) == 4 and all(r["ops_per_s"] > 0 for r in rows):
            break
        assert count < 200
    assert all(0 < r["busy"] <= 1 and r["memory"] > 1e7 and r["device"] == "cpu" for r in rows)
    console = Console(record=True, width=80, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(top.table(pid, rates))
    text = console.export_text()
    assert "ops/s" in text and "stage_" in text and f"process {pid}" in text
    assert len(text.splitlines()) == 2 + len(rows) and "…" not in text  # a row is one line of 80 characters


def browser(tmp_path):
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium and chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"),
        *("disable-background-networking", "disable-component-update", "window-size=1280,860"),
        *(f"user-data-dir={tmp_path / 'profile'}", "disable-dev-shm-usage"),
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    return webdriver.Chrome(options=options, service=service)


@pytest.mark.parametrize("name", ["pipeline", "population"])
def test_the_page_in_a_browser(scripts, tmp_path, name):
    pid = scripts(name)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "wide_compiler", "signals", "web", "--port", "0", "--pid", str(pid)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    page = None
    try:
        address = server.stdout.readline().split()[0]
        assert address.startswith("http://127.0.0.1:")
        stranger = urllib.request.Request(address, headers={"Host": "example.org"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(stranger)
        page = browser(tmp_path)
        from selenium.webdriver.support.ui import WebDriverWait

        page.get(address)
        legend = "stage_1_backward, backward" if name == "pipeline" else "population, forward"
        wait = WebDriverWait(page, 90)
        wait.until(lambda p: legend in p.find_element("id", "legend").text)
        wait.until(lambda p: len(p.find_elements("css selector", "#workers tr")) == 5)
        assert page.find_element("id", "status").text == "live, 4 workers"
        assert page.find_element("id", "pid").text == str(pid)
        painted = (
            "const c = document.getElementById(arguments[0]); const d = c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data; const seen = new Set();"
            "for (let i = 0; i < d.length; i += 4) if (d[i + 3]) seen.add([d[i], d[i + 1], d[i + 2]].join());"
            "return seen.size"
        )
        assert page.execute_script(painted, "timeline") > 5
        if name == "population":
            wait.until(lambda p: "32 lanes, 32 training" in p.find_element("id", "spread").text)
            wait.until(lambda p: p.execute_script(painted, "losses") > 30)
            steps = "return newestTraining([8, 9, 1, 2].map(step => ({step}))).map(l => l.step)"
            assert page.execute_script(steps) == [1, 2]
        else:
            assert not page.find_element("id", "lanes").is_displayed()
        complaints = [line for line in page.get_log("browser") if "favicon" not in line["message"]]
        assert not complaints
        folder = os.environ.get("WIDE_SCREENSHOTS")
        if folder:
            page.execute_script("document.getElementById('span').value = '0.5'")
            time.sleep(1.5)
            page.save_screenshot(os.path.join(folder, f"web_{name}.png"))
        telephone = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", telephone)
        assert page.execute_script("return document.documentElement.scrollWidth") <= 420
    finally:
        if page is not None:
            page.quit()
        server.kill()
        server.wait()
        server.stdout.close()


def test_nothing_is_watched_before_and_after():
    """While nobody looks the workers keep no times, and a script that ends leaves no socket."""
    gt.cpu_workers(1)
    engine = runtime.engine()
    assert engine.watcher is None
    stream = attach.frames(attach.running()[os.getpid()])
    next(stream)
    assert engine.watcher is not None
    stream.close()
    while engine.watcher is not None:
        (gt.zeros(2) + 1).sum().item()
    gt.shutdown()
    assert os.getpid() not in attach.running()


def test_bad_input(tmp_path):
    gt.shutdown()
    blocked = tmp_path / "file"
    blocked.write_text("")
    told = run("trace", "--dir", str(blocked / "traces"))
    assert told.exit_code == 1 and "cannot write traces to" in told.output
    told = run("trace", "--dir", str(tmp_path), "--pid", "1")
    assert told.exit_code == 1 and "process 1 has no workers" in told.output
    told = run("visualize", str(tmp_path / "none.log"))
    assert told.exit_code == 1 and "no trace at" in told.output
    told = run("visualize", str(blocked))
    assert told.exit_code == 1 and "is not a trace" in told.output
    told = run("visualize", str(blocked), "--output", "timeline.txt")
    assert told.exit_code == 2


def test_a_port_that_is_taken():
    import socket

    gt.cpu_workers(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = run("web", "--port", str(port), "--pid", str(os.getpid()))
    assert told.exit_code == 1 and f"port {port} of 127.0.0.1 cannot be used" in told.output
    gt.shutdown()


SPANS = [
    Span(0, 1, "aten.mm.default", "a", "forward", "x.py:1", 10.0, 10.1),
    Span(0, 2, "aten.relu.default", "a", "forward", "x.py:1", 10.1, 10.2),
    Span(0, 3, "move", "a", "forward", "x.py:2", 10.2, 10.4),
    Span(0, 4, "aten.mm.default", "a", "backward", "x.py:3", 10.4, 10.5),
    Span(1, 3, "move", "a", "forward", "x.py:2", 10.3, 10.4),
]


def test_blocks_and_shares(tmp_path):
    found = [(b.worker, b.way, b.instructions) for b in blocks(SPANS)]
    assert found == [(0, "forward", 2), (0, "transfer", 1), (0, "backward", 1), (1, "transfer", 1)]
    assert busy(SPANS, 10.0, 10.5)[0] == pytest.approx(0.6)
    assert typical_window(SPANS) == (10.0, 10.5)
    write(tmp_path / "t.log", WorkerTrace({"pid": 1}, SPANS))
    assert sorted(read([tmp_path / "t.log"]).spans) == sorted(SPANS)
    assert len(chrome(SPANS)["traceEvents"]) == 3 + 4 + 5
