"""Web page on the loopback interface: live timeline, meshes, and the loss of every lane."""

from __future__ import annotations

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from .attach import choose, frames
from .blocks import SignalBlock, blocks
from .picture import colour_of
from .top import Rates

_KEPT_SECONDS = 30.0
_KEPT_LOSSES = 300


class Live:
    """State of the page, from the frames of one script. `state()` may be called from any thread."""

    def __init__(self, pid: int, socket: Path) -> None:
        self.pid = pid
        self.ended = False
        self.rates = Rates()
        self.blocks: deque[SignalBlock] = deque()
        self.losses: deque[dict[str, Any]] = deque(maxlen=_KEPT_LOSSES)
        self._lock = threading.Lock()
        threading.Thread(target=self._follow, args=(socket,), daemon=True).start()

    def _follow(self, socket: Path) -> None:
        for frame in frames(socket):
            with self._lock:
                self.rates.add(frame)
                self.blocks.extend(blocks(frame.spans))
                oldest = frame.about["time"] - _KEPT_SECONDS
                while self.blocks and self.blocks[0].end < oldest:
                    self.blocks.popleft()
                news = frame.about["losses"]
                if news is not None and (not self.losses or self.losses[-1]["step"] != news["step"]):
                    self.losses.append(news)
        self.ended = True

    def state(self, since: float) -> dict[str, Any]:
        """Return the state as JSON types, without blocks that ended before `since` (epoch seconds)."""
        with self._lock:
            about = self.rates.about
            signals = about.get("signals", {})
            names = sorted({b.signal for b in self.blocks} - {""} | set(signals))
            return {
                "pid": self.pid,
                "ended": self.ended,
                "time": about.get("time", 0),
                "workers": about.get("workers", 0),
                "meshes": about.get("meshes", []),
                "signals": signals,
                "colours": colour_of(names),
                "rows": self.rates.rows(),
                "blocks": [b for b in self.blocks if b.end > since],
                "losses": list(self.losses),
            }


class Server(ThreadingHTTPServer):
    live: Live


class Handler(BaseHTTPRequestHandler):
    """Serves `/` (the page) and `/state?since=...` (its data)."""

    server: Server

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in ("127.0.0.1", "localhost"):
            self.send_error(403, "this page is for this machine alone")  # guards against DNS rebinding
            return
        path, _, query = self.path.partition("?")
        if path == "/":
            page = resources.files(__package__).joinpath("page.html").read_bytes()
            self._answer(page, "text/html; charset=utf-8")
        elif path == "/state":
            since = float(query.removeprefix("since=") or 0)
            self._answer(json.dumps(self.server.live.state(since)).encode(), "application/json")
        else:
            self.send_error(404)

    def _answer(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def serve(pid: int | None, port: int) -> Server:
    """Return a server for the page of a script; `serve_forever()` runs it. Port 0 is any free port."""
    pid, socket = choose(pid)
    try:
        server = Server(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise ArgumentError(
            f"port {port} of 127.0.0.1 cannot be used ({error}); choose another with --port, or --port 0 "
            "for any that is free"
        ) from None
    server.live = Live(pid, socket)
    return server
