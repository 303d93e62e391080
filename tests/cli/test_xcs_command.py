"""`wide_compiler xcs explain` on what is no plain function in a plain file."""

import sys

import pytest
from typer.testing import CliRunner

from wide_compiler.cli import app

pytestmark = pytest.mark.filterwarnings("error::wide_compiler.xcs.XcsWarning")  # the text says it already

TEXT = """
import functools
import math
from torch import nn
from wide_compiler.xcs import jit, module

def decorator(f):
    @functools.wraps(f)
    def wrapper(*args):
        return f(*args)
    return wrapper

def plain(xs):
    return [x * 2 for x in xs]

def no_site(xs):
    for x in xs:
        if x:
            break

@decorator
@decorator
def decorated(xs):
    return [x * 3 for x in xs]

@functools.lru_cache
def cached(xs):
    return [x * 4 for x in xs]

@jit
def jitted(xs):
    return [x * 5 for x in xs]

@decorator
@jit
def around_jitted(xs):
    return [x * 6 for x in xs]

class Model:
    calls = 0

    def __init__(self):
        self.xs = []

    def many(self, xs):
        return [x + 1 for x in xs]

    def __call__(self, xs):
        return [x + 2 for x in xs]

    @property
    def doubled(self):
        Model.calls += 1
        return [2 * x for x in self.xs]

    @functools.cached_property
    def tripled(self):
        return [3 * x for x in self.xs]

    def explain(self):
        raise AssertionError("not meant to be called")

class Empty:
    pass

@module
class Scale:
    factor: float

class Net(nn.Module):
    def forward(self, x):
        return [a for a in x]

model, net = Model(), Net()
partial = functools.partial(plain, [1])
root = math.sqrt

async def coroutine(xs):
    return [x for x in xs]

def generator(xs):
    yield from [x for x in xs]

@jit
def jitted_generator(xs):
    yield from [x for x in xs]
"""


@pytest.fixture
def explain(tmp_path, monkeypatch):
    """Writes files, by path and text, and explains a target in them; what they import is forgotten after."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)

    def call(target, **files):
        for name, text in {"demo_to_explain.py": TEXT, **files.pop("files", {})}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        command = ["xcs", "explain", target]
        result = CliRunner().invoke(app, command, env={"COLUMNS": "300", "TERM": "dumb"})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, " ".join(result.output.split())

    yield call
    for name in set(sys.modules) - before:
        if "to_explain" in name:
            del sys.modules[name]


def demo(explain, name):
    return explain(f"demo_to_explain.py:{name}")


@pytest.mark.parametrize(
    "text, words",
    [
        ("x = 1\ndef f(:\n", "failed at line 2: SyntaxError: invalid syntax"),
        ("\n\nimport nowhere_to_be_found", "failed at line 3: ModuleNotFoundError: No module named"),
        ("def g():\n    raise ValueError('a [b] c\\nmore')\ng()", "failed at line 2: ValueError: a [b] c │"),
        ("raise KeyError", "failed at line 1: KeyError │"),
        ("class Stop(BaseException): ...\nraise Stop('here')", "failed at line 2: Stop: here"),
        ("x = 'a\0b'", "failed: SyntaxError: source code"),
    ],
)
def test_a_file_that_cannot_be_imported(explain, text, words):
    code, output = explain("bad_to_explain.py:f", files={"bad_to_explain.py": text})
    assert code == 2
    assert f"importing bad_to_explain.py {words}" in output
    assert "Traceback" not in output and "xcs_file.py" not in output and "bad_to_explain" not in sys.modules


@pytest.mark.parametrize(
    "text, words", [("\nint('x')", "ValueError: invalid literal"), ("\nint(", "SyntaxError: ")]
)
def test_a_mistake_in_a_file_that_the_file_imports(explain, tmp_path, text, words):
    files = {"top_to_explain.py": "\n\nimport below_to_explain", "below_to_explain.py": text}
    code, output = explain("top_to_explain.py:f", files=files)
    assert code == 2
    below = tmp_path / "below_to_explain.py"
    assert f"importing top_to_explain.py failed at line 3 (in {below}, line 2): {words}" in output


@pytest.mark.parametrize(
    "status, words", [("3", "exit status 3"), ("", "exit status 0"), ("'bad'", "exit status 1: bad")]
)
def test_a_file_that_ends_the_program(explain, status, words):
    files = {"ends_to_explain.py": f"import sys\nsys.exit({status})"}
    code, output = explain("ends_to_explain.py:f", files=files)
    assert code == 2
    assert f"importing ends_to_explain.py ended the program ({words}); put what runs it under" in output
    assert "`if __name__ == '__main__':`" in output


def test_a_file_is_imported_as_a_part_of_its_package(explain):
    files = {
        "package_to_explain/__init__.py": "",
        "package_to_explain/util.py": "def h(x): return x",
        "package_to_explain/inner/__init__.py": "from ..util import h\ndef top(x): return h(x)",
        "package_to_explain/inner/mod.py": (
            "from ..util import h\nfrom . import top\nimport beside_to_explain\n"
            "def f(xs): return [h(x) for x in xs]"
        ),
        "package_to_explain/inner/beside_to_explain.py": "",  # found if the file ran as a program
    }
    code, output = explain("package_to_explain/inner/mod.py:f", files=files)
    assert code == 0 and "[h(x) for x in xs]" in output
    assert sys.modules["package_to_explain.inner.mod"].f.__module__ == "package_to_explain.inner.mod"
    code, output = explain("package_to_explain/inner/__init__.py:top")
    assert code == 0 and "top has no loops" in output


def test_a_package_whose_name_is_taken(explain):
    files = {"json/__init__.py": "", "json/mod_to_explain.py": "def f(xs): return [x for x in xs]"}
    code, output = explain("json/mod_to_explain.py:f", files=files)
    assert code == 0 and "[x for x in xs]" in output


def test_no_python_file(explain):
    code, output = explain("text_to_explain.txt:f", files={"text_to_explain.txt": "hello"})
    assert code == 2 and "text_to_explain.txt is not a Python file" in output


@pytest.mark.parametrize(
    "name, words",
    [
        ("Model", "Model is a class: name one of its methods, such as Model.__call__ or Model.many"),
        ("Net", "Net is a class: name one of its methods, such as Net.forward"),
        ("Empty", "Empty is a class without methods of its own"),
        ("Scale", "Scale is a class without methods of its own"),
        ("model", "model is an object of class Model: name the method that runs it, Model.__call__"),
        ("net", "net is an object of class Net: name the method that runs it, Net.forward"),
        ("partial", "partial is a functools.partial of plain: name that function instead"),
        ("Model.calls", "'Model.calls' in demo_to_explain.py is not a function but an object of class int"),
        ("jited", "has no 'jited': did you mean jitted"),
        ("Model.man", "has no 'Model.man': did you mean Model.many?"),
        ("Modell.many", "has no 'Modell.many': did you mean Model.many"),
        ("zzzz", "has no 'zzzz': its functions are decorator, plain, no_site, decorated, cached, jitted,"),
    ],
)
def test_what_to_name_instead(explain, name, words):
    code, output = demo(explain, name)
    assert code == 2
    assert words in output


def test_a_file_without_functions(explain):
    code, output = explain("none_to_explain.py:f", files={"none_to_explain.py": "from math import sqrt"})
    assert code == 2 and "has no 'f', and no functions at all" in output


@pytest.mark.parametrize("name", ["coroutine", "generator", "jitted_generator", "root"])
def test_what_runs_as_it_is_says_so_once(explain, name):
    code, output = demo(explain, name)
    assert code == 0
    assert output.count(": ") == 1 and ": loop, because " in output


@pytest.mark.parametrize(
    "name, text",
    [
        ("Model.doubled", "[2 * x for x in self.xs]"),
        ("model.doubled", "[2 * x for x in self.xs]"),
        ("Model.tripled", "[3 * x for x in self.xs]"),
        ("model.many", "[x + 1 for x in xs]"),
        ("Model.__call__", "[x + 2 for x in xs]"),
        ("jitted", "[x * 5 for x in xs]"),
    ],
)
def test_properties_methods_and_jitted_functions(explain, name, text):
    code, output = demo(explain, name)
    assert code == 0 and text in output
    assert "decorator" not in output
    assert sys.modules["demo_to_explain"].Model.calls == 0


@pytest.mark.parametrize(
    "name, text",
    [
        ("decorated", "[x * 3 for x in xs]"),
        ("cached", "[x * 4 for x in xs]"),
        ("around_jitted", "[x * 6 for x in xs]"),
    ],
)
def test_a_decorated_function_is_looked_at_below_its_wrapper(explain, name, text):
    code, output = demo(explain, name)
    assert code == 0 and text in output
    assert f"{name} has a decorator; what its wrapper does is not analysed." in output


def test_what_yes_means_is_said_where_there_is_one(explain):
    assert "yes: decided from the actual objects when it runs" in demo(explain, "plain")[1]
    assert "yes" not in demo(explain, "no_site")[1]
