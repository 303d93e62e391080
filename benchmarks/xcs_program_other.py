"""Programs of the page `xcs_programs.md` with Python's numbers, texts, records, PyTorch and requests."""

import hashlib
import http.server
import json
import math
import random
import re
import threading
import time
import urllib.request
from dataclasses import dataclass

import torch
from torch import nn
from xcs_program_arrays import program


def fly(angle, drag):
    """Distance of a thrown ball, in steps of a hundredth of a second."""
    x, y = 0.0, 0.0
    vx, vy = 20.0 * math.cos(angle), 20.0 * math.sin(angle)
    for _ in range(60):
        speed = math.sqrt(vx * vx + vy * vy)
        vx -= drag * speed * vx * 0.01
        vy -= (9.81 + drag * speed * vy) * 0.01
        x += vx * 0.01
        y += vy * 0.01
    return x, y


@program("simulation for many parameters", lambda rng: ([(a, d) for a, d in rng.random((400, 2)).tolist()],))
def flights(cases):
    return [fly(angle, 0.01 * drag) for angle, drag in cases]


@program("particles in a box, step by step", lambda rng: (rng.random((2400, 4)).tolist(),))
def particles(state):
    for _ in range(5):
        moved = []
        for x, y, vx, vy in [tuple(p) for p in state]:
            nx, ny = x + 0.01 * vx, y + 0.01 * vy
            if nx < 0.0 or nx > 1.0:
                vx = -vx
            if ny < 0.0 or ny > 1.0:
                vy = -vy
            moved.append((nx, ny, vx, vy - 0.0981))
        state = moved
    return state


@program("Monte Carlo with Python's random numbers", lambda rng: (20_000,))
def estimate_pi(n):
    generator = random.Random(7)
    inside = 0
    for _ in range(n):
        x, y = generator.random(), generator.random()
        if x * x + y * y < 1.0:
            inside += 1
    return 4 * inside / n


@program("great-circle distances", lambda rng: ([(a, b) for a, b in (rng.random((8000, 2)) * 80).tolist()],))
def distances(places):
    lat0, lon0 = math.radians(48.1), math.radians(11.6)
    out = []
    for lat, lon in places:
        p, q = math.radians(lat), math.radians(lon)
        a = math.sin((p - lat0) / 2) ** 2 + math.cos(lat0) * math.cos(p) * math.sin((q - lon0) / 2) ** 2
        out.append(12742.0 * math.asin(math.sqrt(a)))
    return out


@program(
    "prices of bonds",
    lambda rng: (
        [
            (c, n, r)
            for c, n, r in zip(
                (rng.random(1500) * 5).tolist(),
                rng.integers(5, 30, 1500).tolist(),
                (rng.random(1500) * 0.1).tolist(),
                strict=True,
            )
        ],
    ),
)
def bond_prices(bonds):
    return [sum(c / (1 + r) ** t for t in range(1, n + 1)) + 100 / (1 + r) ** n for c, n, r in bonds]


def newton(a):
    x = a
    while abs(x * x - a) > 1e-9 * a:
        x = 0.5 * (x + a / x)
    return x


@program("roots by Newton's method", lambda rng: ((rng.random(4000) * 100 + 1).tolist(),))
def roots(numbers):
    return [newton(a) for a in numbers]


def escapes(c):
    z = 0j
    for i in range(30):
        z = z * z + c
        if abs(z) > 2.0:
            return i
    return 30


@program(
    "Mandelbrot set", lambda rng: ([complex(x / 20 - 2, y / 20 - 1) for x in range(50) for y in range(40)],)
)
def mandelbrot(points):
    return [escapes(c) for c in points]


@dataclass
class Order:
    price: float
    count: int
    member: bool


@program(
    "orders with discounts (dataclass)",
    lambda rng: (
        [
            Order(p, c, m)
            for p, c, m in zip(
                (rng.random(30_000) * 90).tolist(),
                rng.integers(1, 9, 30_000).tolist(),
                (rng.random(30_000) > 0.5).tolist(),
                strict=True,
            )
        ],
    ),
)
def revenue(orders):
    total = 0.0
    for order in orders:
        amount = order.price * order.count
        if order.member and amount > 100.0:
            amount *= 0.9
        total += amount
    return total


@program("largest drawdown of prices", lambda rng: ((100 + rng.normal(size=25_000).cumsum()).tolist(),))
def drawdown(prices):
    peak, worst = prices[0], 0.0
    for price in prices:
        if price > peak:
            peak = price
        worst = max(worst, peak - price)
    return worst


LINE = re.compile(r"(\d+) (\w+) (\d+)ms")


@program(
    "log lines to records",
    lambda rng: (
        [
            f"{i} {'GET' if k % 2 else 'POST'} {k}ms"
            for i, k in enumerate(rng.integers(1, 900, 3000).tolist())
        ],
    ),
)
def parse_log(lines):
    records = []
    for line in lines:
        match = LINE.match(line)
        if match:
            records.append({"id": int(match.group(1)), "verb": match.group(2), "ms": int(match.group(3))})
    return records


@program(
    "numbers from CSV lines",
    lambda rng: ([",".join(f"{v:.4f}" for v in row) for row in rng.random((2000, 6)).tolist()],),
)
def parse_csv(lines):
    return [[float(cell) for cell in line.split(",")] for line in lines]


@program(
    "JSON records, summed by user",
    lambda rng: (
        [json.dumps({"user": f"u{k}", "amount": k * 0.5}) for k in rng.integers(0, 50, 2000).tolist()],
    ),
)
def json_totals(lines):
    totals = {}
    for line in lines:
        record = json.loads(line)
        totals[record["user"]] = totals.get(record["user"], 0.0) + record["amount"]
    return totals


@program(
    "words counted",
    lambda rng: ([" ".join(f"Word{w}," for w in row) for row in rng.integers(0, 99, (1200, 12)).tolist()],),
)
def word_counts(texts):
    counts = {}
    for text in texts:
        for word in [w.strip(".,").lower() for w in text.split()]:
            counts[word] = counts.get(word, 0) + 1
    return counts


@program("checksums of blobs", lambda rng: ([rng.bytes(200_000) for _ in range(24)],))
def checksums(blobs):
    return [hashlib.sha256(blob).hexdigest() for blob in blobs]


def network():
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)).eval()


MODELS = [network() for _ in range(48)]


@program("ensemble of small networks", lambda rng: (torch.from_numpy(rng.normal(size=(8, 16))).float(),))
@torch.no_grad()
def ensemble(x):
    outputs = [model(x) for model in MODELS]
    return torch.stack(outputs).mean(dim=0)


@program(
    "one network over many tensors",
    lambda rng: ([torch.from_numpy(v).float() for v in rng.normal(size=(200, 16))],),
)
@torch.no_grad()
def predictions(items):
    return [MODELS[0](x).softmax(dim=-1) for x in items]


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.003)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_):
        pass


def server(rng):
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    return ([f"http://127.0.0.1:{made.server_port}/{i}" for i in range(8)],)


@program("requests to a server", server)
def fetch_all(urls):
    return [urllib.request.urlopen(url).read() for url in urls]
