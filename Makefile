# Everything runs in a virtual environment of its own, made on the first use of any target.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

# One thread in each of the two test processes: small tensors gain nothing from more, and threads that wait
# for each other on a busy machine lose a great deal.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help demo test nightly lint types browser docs clean

help:
	@echo "make demo    train 64 networks at once and one after another; writes wide_demo.png"
	@echo "make test    lint, types and the tests (about 20 minutes on two cores)"
	@echo "make nightly the tests with all cases of the long lists and many more random programs"
	@echo "make lint    ruff: rules and format"
	@echo "make types   mypy"
	@echo "make docs    the documentation, into site/"
	@echo "make clean   remove what the other targets wrote, but not $(VENV)"

demo: $(VENV)/.installed
	$(BIN)/wide_compiler demo

test: lint types browser
	$(TEST_ENV) $(BIN)/python -m pytest -q -n 2

nightly: $(VENV)/.installed browser
	NIGHTLY=1 $(TEST_ENV) $(BIN)/python -m pytest -q -n 2

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

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis wide_demo.png src/*.egg-info
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	# PyTorch first and alone: nothing that merely depends on it gets to choose the build.
	$(PIP) install --quiet -c constraints.txt torch
	$(PIP) install --quiet -c constraints.txt -e '.[dev,plots,optuna,lightning,accelerate,ray,peft]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) install --quiet -c constraints.txt -e '.[docs]'
	touch $@
