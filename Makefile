# The two commands of the README are `make demo` and `make test`; each does its own set-up.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard native/Cargo.toml native/Cargo.lock native/src/*.rs)

.PHONY: setup demo bench test check format unit loopback lab wheel clean

setup: $(VENV)/.setup-done $(VENV)/.native-done

$(VENV)/.setup-done: pyproject.toml setup.py tools/setup.sh
	@bash tools/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $@

# After a change of the crate only the package itself is installed again, which has cargo build what changed.
$(VENV)/.native-done: $(NATIVE) | $(VENV)/.setup-done
	@bash tools/setup.sh --package-only "$(VENV)"
	@touch $@

demo: setup
	@$(BIN)/python -m tools.demo run --output out/demo

# Side by side with Gloo, iperf3 and kernel TCP; BENCH="--quick loopback lan" and the like for less.
bench: setup
	@bash tools/bench/setup.sh
	@$(BIN)/python -m tools.bench $(BENCH)

# A wheel with the native engine for machines without cargo, in dist/.
wheel:
	@bash tools/wheel.sh "$(PYTHON)" dist

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@bash tools/cargo.sh check $(BIN)/python

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check
	@bash tools/cargo.sh test $(BIN)/python
	$(BIN)/python -m pytest

unit loopback lab: setup
	$(BIN)/python -m pytest tests/$@

clean:
	rm -rf $(VENV) out build dist *.egg-info hive_qos_native*.so native/target
