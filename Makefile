# The two commands are `make quickstart` and `make test`; both set up .venv first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCH := $(shell grep '^torch==' constraints.txt)

.PHONY: quickstart test test-slow test-gpu lint format docs clean
.DEFAULT_GOAL := test

# torch is asked for alone, first and exactly: anything installed before it could pull another build.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt '$(TORCH)'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

quickstart: $(READY)
	$(BIN)/rebased quickstart --out out/quickstart

# Two worker processes with one thread each: the tests are many and small.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A broken link or reference is an error. The variable silences an announcement of the theme's authors.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) out dist build
