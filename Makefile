# Two commands do all set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: setup demo test test-clients check bench clean

setup: .venv/installed

.venv/installed: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
		($(PYTHON) -m pip install --quiet --user virtualenv && $(PYTHON) -m virtualenv --quiet .venv)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'  # first, so that nothing pulls a CUDA stack unasked
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,train,serve]'
	@touch $@

demo: setup
	$(BIN)/omnia demo --out runs/demo --jobs $(JOBS)

test: setup
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not clients"
	$(BIN)/python -m pytest -n $(JOBS) -m slow

test-clients: setup
	$(BIN)/python -m pytest -m clients

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/synthesis.py
	$(BIN)/python benchmarks/serving.py

clean:
	rm -rf .venv runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
