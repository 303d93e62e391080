# Everything runs in a virtual environment of its own, made on the first use of any target.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

# One thread in each of the two test processes: small tensors gain nothing from more, and threads that wait
# for each other on a busy machine lose a great deal.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

# The oldest PyTorch that pyproject.toml allows. TORCH_OPTIONS goes to `pip install torch` in environments for
# other versions: an index with CPU builds, say, which spares gigabytes of CUDA libraries.
OLDEST_TORCH  := 2.11.0
TORCH_OPTIONS ?=
# Random programs of `make nightly` begin at this number: every night others, and a failure can be repeated.
NIGHTLY_SEED  ?= $(shell date +%Y%m%d)

.PHONY: help demo test quick nightly nightly-tests nightly-torch lint types browser docs dist clean

help:
	@echo "make demo    train 64 networks at once and one after another; writes wide_demo.png"
	@echo "make quick   a few tests of every file, under two minutes on two cores"
	@echo "make test    lint, types and the tests (about 15 minutes on two cores)"
	@echo "make nightly all cases of the long lists, many more random programs, the oldest and the newest PyTorch"
	@echo "make lint    ruff: rules and format"
	@echo "make types   mypy"
	@echo "make docs    the documentation, into site/"
	@echo "make dist    wheel and sdist, into dist/"
	@echo "make clean   remove what the other targets wrote, but not $(VENV)"

demo: $(VENV)/.installed
	$(BIN)/wide_compiler demo

test: lint types browser
	$(TEST_ENV) $(BIN)/python -m pytest -q -n 2

quick: $(VENV)/.installed
	QUICK=1 $(TEST_ENV) $(BIN)/python -m pytest -q -n 2

nightly: nightly-tests nightly-torch

nightly-tests: $(VENV)/.installed browser
	@echo "NIGHTLY_SEED=$(NIGHTLY_SEED)"
	NIGHTLY=1 NIGHTLY_SEED=$(NIGHTLY_SEED) $(TEST_ENV) $(BIN)/python -m pytest -q -n 2

# The tests with other versions of PyTorch, each in an environment of its own. A name that is gone fails
# first, with the whole list.
nightly-torch: .venv-oldest/.installed .venv-newest/.installed
	@for venv in .venv-oldest .venv-newest; do \
	  $$venv/bin/python -c "import torch; print('PyTorch', torch.__version__)" && \
	  $$venv/bin/python -m pytest -q tests/test_pytorch_api.py && \
	  $(TEST_ENV) $$venv/bin/python -m pytest -q -n 2 || exit 1; \
	done

.venv-oldest/.installed: pyproject.toml
	$(call other_torch,.venv-oldest,torch==$(OLDEST_TORCH))

# Made anew each time: what is newest changes.
.PHONY: .venv-newest/.installed
.venv-newest/.installed:
	$(call other_torch,.venv-newest,--upgrade torch)

define other_torch
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet $(TORCH_OPTIONS) $(2)
	$(1)/bin/python -m pip install --quiet -e '.[dev,plots,optuna,lightning,accelerate,peft,onnx]'
	touch $@
endef

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

# The web page of `wide_compiler signals web` is tested in a real browser; without root or apt that test is skipped.
browser:
	@command -v chromedriver >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  apt-get update -qq && apt-get install -y -qq chromium chromium-driver >/dev/null; } || \
	  echo "no chromium here: its test is skipped"

dist: $(VENV)/.installed
	$(PIP) install --quiet build
	$(BIN)/python -m build

docs: $(VENV)/.installed
	$(BIN)/mkdocs build --strict

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis wide_demo.png src/*.egg-info
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	# PyTorch first and alone: nothing that merely depends on it gets to choose the build.
	$(PIP) install --quiet -c constraints.txt torch
	$(PIP) install --quiet -c constraints.txt -e '.[dev,plots,optuna,lightning,accelerate,ray,peft,onnx,docs]'
	touch $@
