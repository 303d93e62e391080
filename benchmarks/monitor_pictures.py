"""The pictures of the monitor: the live page of a pipeline and of a population, and a timeline.

    python benchmarks/monitor_pictures.py            # all three
    python benchmarks/monitor_pictures.py pipeline   # those of one script

Each script below runs on four local workers; `wide_compiler signals web` and `trace` look at it from outside,
and a Chromium without a window photographs the page. Needs selenium (`pip install selenium`), Chromium and
its driver, at $CHROMIUM and $CHROMEDRIVER if not in /usr/bin.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pictures import IMAGES, make_small
from selenium import webdriver

COMMAND = [sys.executable, "-m", "wide_compiler", "signals"]

PIPELINE = """
import torch
import wide_compiler.signals as gt

def signal(name, workers, backward=None):
    shard = gt.ShardConfig(axis=0, workers=workers)
    gt.register_config(name, gt.SignalConfig(shard=shard, backward_signal=backward))

def block(inside, outside):
    return torch.nn.Sequential(torch.nn.Linear(inside, 512), torch.nn.ReLU(), torch.nn.Linear(512, outside))

if __name__ == "__main__":
    signal("stage_1", [0, 1], "stage_1_backward")
    signal("stage_1_backward", [2, 3])
    signal("stage_2", [2, 3], "stage_2_backward")
    signal("stage_2_backward", [0, 1])
    first, second = block(256, 256), block(256, 16)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    x, y = torch.randn(512, 256), torch.randn(512, 16)
    while True:
        with gt.signal.context("stage_1"):
            hidden = first(x)
        with gt.signal.context("stage_2"):
            loss = (second(hidden) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
"""

POPULATION = """
import torch
import wide_compiler
import wide_compiler.signals as gt
from wide_compiler.training import AdamW, fit, lane_losses

def network():
    return torch.nn.Sequential(torch.nn.Linear(8, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))

if __name__ == "__main__":
    torch.manual_seed(0)
    shard = gt.ShardConfig(axis=0, workers=[0, 1, 2, 3])
    gt.register_config("population", gt.SignalConfig(shard=shard))
    x = torch.randn(512, 8)
    y = (x[:, :1] * x[:, 1:2]).sin()
    models = [network() for _ in range(32)]
    with gt.signal.context("population"):
        wide = wide_compiler.compile(models, x[:2])
    optimizer = AdamW(wide.parameters(), lr=torch.logspace(-5, -1.5, 32))
    fit(wide, optimizer, lane_losses.mse, [(x, y)] * 10, epochs=100000, progress=False)
"""


def photograph(page: str, picture: Path, height: int) -> None:
    """Save what a browser shows of the page after it has been live for some seconds."""
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    for option in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "hide-scrollbars",
        f"window-size=1280,{height}",
    ):
        options.add_argument(f"--{option}")
    driver = os.environ.get("CHROMEDRIVER", "/usr/bin/chromedriver")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        browser.get(page)
        browser.execute_script("document.getElementById('span').selectedIndex = 1")  # half a second
        time.sleep(8)
        browser.save_screenshot(str(picture))
    finally:
        browser.quit()


def watched(name: str, text: str, wait: float, height: int, timeline: bool = False) -> None:
    """Run a script, photograph the page that shows it, and draw a timeline."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / f"{name}.py"
        script.write_text(text)
        run = subprocess.Popen([sys.executable, script], cwd=folder)
        web = None
        try:
            time.sleep(wait)
            pid = ["--pid", str(run.pid)]
            if timeline:
                subprocess.run([*COMMAND, "trace", *pid, "-s", "5", "--dir", f"{folder}/traces"], check=True)
                (trace,) = Path(folder, "traces").glob("*.log")
                out = Path(folder) / "timeline.png"
                subprocess.run(
                    [*COMMAND, "visualize", trace, "--from", "2", "--to", "2.4", "--output", out], check=True
                )
                make_small(out, IMAGES / f"timeline_{name}.png", "benchmarks/monitor_pictures.py")
            web = subprocess.Popen([*COMMAND, "web", *pid, "--port", "0"], stdout=subprocess.PIPE, text=True)
            page = web.stdout.readline().split()[0]  # printed once it can be read
            photograph(page, Path(folder) / "page.png", height)
            make_small(
                Path(folder) / "page.png", IMAGES / f"web_{name}.png", "benchmarks/monitor_pictures.py"
            )
        finally:
            for process in filter(None, (web, run)):
                process.terminate()
                process.wait()


def main(names: list[str]) -> None:
    if not names or "pipeline" in names:
        watched("pipeline", PIPELINE, wait=15, height=800, timeline=True)
    if not names or "population" in names:
        watched("population", POPULATION, wait=40, height=1030)


if __name__ == "__main__":
    main(sys.argv[1:])
