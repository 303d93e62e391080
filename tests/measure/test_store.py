"""What tuning found, on disk; and what is there but must not be believed."""

import json
import multiprocessing

import pytest

from wide_compiler.measure import Store
from wide_compiler.measure import store as store_module

KEY = ("graph", (4, 8), "cpu")


def test_an_answer_comes_back(tmp_path):
    store = Store(tmp_path / "deep" / "folder")
    assert store.read(KEY) is None
    store.write(KEY, {"way": "loop"})
    assert store.read(KEY) == {"way": "loop"}
    assert store.read((*KEY, "more")) is None
    store.write(KEY, {"way": "wide"})
    assert store.read(KEY) == {"way": "wide"}


@pytest.mark.parametrize(
    "content",
    ["", "{", "null", "[]", '"text"', "{}", '{"format": 3}', "\x00\xff", '{"format":3,"key":1,"answer":2}'],
)
def test_a_broken_file_counts_as_not_there(tmp_path, content):
    store = Store(tmp_path)
    store.write(KEY, {"way": "loop"})
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert store.read(KEY) is None
    store.write(KEY, {"way": "loop"})
    assert store.read(KEY) == {"way": "loop"}


def test_another_format_is_stale(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.write(KEY, {"way": "loop"})
    monkeypatch.setattr(store_module, "FORMAT", store_module.FORMAT + 1)
    assert store.read(KEY) is None


def test_an_answer_to_another_question_is_not_taken(tmp_path):
    store = Store(tmp_path)
    store.write(KEY, {"way": "loop"})
    (file,) = tmp_path.iterdir()
    entry = json.loads(file.read_text())
    file.write_text(json.dumps({**entry, "key": "of another graph"}))
    assert store.read(KEY) is None


def test_a_folder_that_cannot_be_written_forgets(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    store = Store(blocked)
    store.write(KEY, {"way": "loop"})
    assert store.read(KEY) is None


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path / "own"))
    Store().write(KEY, {"way": "loop"})
    assert [f.suffix for f in (tmp_path / "own").iterdir()] == [".json"]
    monkeypatch.delenv("WIDE_COMPILER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Store().folder == tmp_path / "xdg" / "wide_compiler" / "tuning"


def _write_often(folder):
    store = Store(folder)
    for i in range(200):
        store.write(KEY, {"way": "x" * (i % 50), "filler": list(range(i))})


def test_two_processes_never_show_half_a_file(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_often, args=(tmp_path,)) for _ in range(2)]
    store = Store(tmp_path)
    store.write(KEY, {"way": "", "filler": []})
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert store.read(KEY) is not None
    for writer in writers:
        writer.join()
    assert [f.suffix for f in tmp_path.iterdir()] == [".json"]
