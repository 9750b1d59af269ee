# The two commands of the README are `make demo` and `make test`; each does its own set-up.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test check format unit loopback lab clean

setup: $(VENV)/.setup-done

$(VENV)/.setup-done: pyproject.toml tools/setup.sh
	@bash tools/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $@

demo: setup
	@$(BIN)/python -m tools.demo run --output out/demo

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check
	$(BIN)/python -m pytest

unit loopback lab: setup
	$(BIN)/python -m pytest tests/$@

clean:
	rm -rf $(VENV) out build dist *.egg-info
