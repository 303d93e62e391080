"""Calls that wait, and are not what they look like: wrapped, patched, or answered by somebody else.

Whoever counts or records such calls must see them in order. Beside each stands the same loop over threads.
"""

import functools
import http.server
import io
import os.path
import pathlib
import sqlite3
import threading
import types
import urllib.request
import urllib.response

import pytest

from wide_compiler.xcs import Config, independent, jit

NOW = Config(measure=False)  # looked at in every call
SEEN = []


def taken(fast):
    return sum(counts.get("threads", 0) for counts in fast.stats().values())


def in_order(fast, items, change):
    """Threads take the call before `change` and after it, and nobody in between: `SEEN` is in order."""
    fast(items)
    before = taken(fast)
    assert before >= 1, str(fast.explain())
    with change:
        SEEN.clear()
        found = fast(items)
        assert list(map(str, items)) == SEEN and found == [f"{item} {i + 1}" for i, item in enumerate(items)]
    assert taken(fast) == before
    fast(items)
    assert taken(fast) == before + 1, str(fast.explain())


def noting(answer=lambda text: text):
    def called(item, *args, **kwargs):
        SEEN.append(str(item))
        return answer(f"{item} {len(SEEN)}")

    return called


class Changed:
    """A context in which something is replaced."""

    def __init__(self, owner, name, value):
        self.owner, self.name, self.value = owner, name, value

    def __enter__(self):
        self.had = getattr(self.owner, self.name)
        setattr(self.owner, self.name, self.value)

    def __exit__(self, *error):
        setattr(self.owner, self.name, self.had)


class Opener:
    """A context with an opener of one's own."""

    def __init__(self, *handlers):
        self.handlers = handlers

    def __enter__(self):
        urllib.request.install_opener(urllib.request.build_opener(*self.handlers))

    def __exit__(self, *error):
        urllib.request.install_opener(None)


@pytest.fixture
def paths(tmp_path):
    made = [tmp_path / str(i) for i in range(8)]
    for path in made:
        path.write_text("text")
    return made


class Quiet(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"answer")

    def log_message(self, *args):
        pass


@pytest.fixture
def urls():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield [f"http://127.0.0.1:{server.server_port}/{i}" for i in range(8)]
        server.shutdown()


def test_a_method_of_paths_that_was_patched(paths):
    fast = jit(lambda paths: [path.read_text() for path in paths], config=NOW)
    in_order(fast, paths, Changed(pathlib.Path, "read_text", noting()))


def test_what_a_method_of_paths_calls(paths):
    fast = jit(lambda paths: [path.read_text() for path in paths], config=NOW)

    def opened(path, *args, **kwargs):
        return noting(io.StringIO)(path)

    in_order(fast, paths, Changed(pathlib.Path, "open", opened))


def test_a_function_that_was_replaced_by_another_one(paths):
    fast = jit(lambda paths: [os.path.getsize(path) for path in paths], config=NOW)
    in_order(fast, list(map(str, paths)), Changed(os.path, "getsize", noting()))


class Fake(urllib.request.HTTPHandler):
    def http_open(self, request):
        answer = noting(str.encode)(request.full_url)
        made = urllib.response.addinfourl(io.BytesIO(answer), {}, request.full_url, 200)
        made.msg = "OK"
        return made


def read_all(urls):
    return [urllib.request.urlopen(url).read() for url in urls]


def test_an_opener_of_ones_own(urls):
    fast = jit(read_all, config=NOW)
    fast(urls)
    assert taken(fast) == 1, str(fast.explain())
    with Opener(Fake):
        SEEN.clear()
        assert fast(urls) == [f"{url} {i + 1}".encode() for i, url in enumerate(urls)] and urls == SEEN
    with Opener(urllib.request.HTTPCookieProcessor):  # what it keeps of one call goes into the next one
        fast(urls)
    assert taken(fast) == 1
    with Opener():
        fast(urls)
    assert taken(fast) == 2


def test_a_get_that_is_wrapped(urls):
    requests = pytest.importorskip("requests")
    get = functools.wraps(requests.get)(noting(lambda text: types.SimpleNamespace(text=text)))

    def requested(method, url, **options):  # which the library's own get() calls
        return get(url)

    def run(urls):
        return [requests.get(url).text for url in urls]

    fast = jit(run, config=NOW)
    in_order(fast, urls, Changed(requests, "get", get))
    in_order(fast, urls, Changed(requests.api, "request", requested))

    def elsewhere(urls):
        return [get(url).text for url in urls]

    fast = jit(elsewhere, config=NOW)
    SEEN.clear()
    fast(urls)
    assert urls == SEEN and taken(fast) == 0


def test_a_path_that_is_opened(paths):
    def read(path):
        with path.open(encoding="utf-8") as file:
            return file.read()

    def write(path):
        with path.open("w") as file:
            return file.write("text")

    reading = jit(lambda paths: [read(path) for path in paths], config=NOW)
    writing = jit(lambda paths: [write(path) for path in paths], config=NOW)
    assert reading(paths) == ["text"] * 8 and taken(reading) == 1, str(reading.explain())
    assert writing(paths) == [4] * 8 and taken(writing) == 0
    assert "writing" in str(writing.explain())

    def opened(path, *args, **kwargs):
        return noting(io.StringIO)(path)

    in_order(reading, paths, Changed(pathlib.Path, "open", opened))


def test_sessions_and_connections_are_used_in_order(urls):
    requests = pytest.importorskip("requests")

    class Own(requests.Session):
        @independent
        def fetch(self, url):
            return requests.get(url).text

    own, session, connection = Own(), requests.Session(), sqlite3.connect(":memory:")
    loops = [
        (lambda xs: [session.get(x).text for x in xs], urls),
        (lambda xs: [own.get(x).text for x in xs], urls),
        (lambda xs: [connection.execute("select ?", (x,)).fetchone() for x in xs], [1, 2, 3]),
    ]
    for plain, items in loops:
        fast = jit(plain, config=NOW)
        assert fast(items) == plain(items) and taken(fast) == 0
    fast = jit(lambda xs: [own.fetch(x) for x in xs], config=NOW)
    assert fast(urls) == ["answer"] * 8 and taken(fast) == 1, str(fast.explain())
    connection.close()
