# The two commands of the README are `make demo` and `make test`; each does its own set-up.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard native/Cargo.toml native/Cargo.lock) $(shell find native/src -name '*.rs')

.PHONY: setup demo bench bench-broker bench-processor test test-native test-pythons test-kernels fuzz sanitize check crate format unit loopback lab wheel clean

setup: $(VENV)/.setup-done

# Where only the crate has changed, only the package itself is installed again: cargo builds what changed of it.
$(VENV)/.setup-done: pyproject.toml setup.py tools/setup.sh $(NATIVE)
	@if [[ -e $@ && -z "$(filter-out $(NATIVE),$?)" ]]; then \
	  bash tools/setup.sh --package-only "$(VENV)"; \
	else \
	  bash tools/setup.sh "$(PYTHON)" "$(VENV)"; \
	fi
	@touch $@

# DEMO=--strict has a figure that misses its goal fail.
demo: setup
	@$(BIN)/python -m tools.demo run --output out/demo $(DEMO)

# Side by side with Gloo, iperf3 and kernel TCP; BENCH="--quick loopback lan" and the like for less.
bench: setup
	@bash tools/bench/setup.sh
	@$(BIN)/python -m tools.bench $(BENCH)

# Beside no control, a fixed split and HTB priority; BENCH="--quick sender remote" and the like for less.
bench-broker: setup
	@$(BIN)/python -m tools.brokerbench $(BENCH)

# What storage costs the processors, whatever its link: the demo's rsync over a link of its own, beside none.
bench-processor: setup
	@$(BIN)/python -m tools.demo run --phases idle,other-link --rounds 6 --output out/bench-processor

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

test: setup
	@$(BIN)/python -m tools.suite

# The native engine's own tests.
crate: setup
	@bash tools/cargo.sh test $(BIN)/python

# Those of the lab in which engines run.
NATIVE_LAB := $(wildcard tests/lab/test_engine_*.py tests/lab/test_transport_*.py)

# Every test of engines and transport over the native engine too, and over the two mixed pairs; torch over native.
test-native: setup
	HIVE_TEST_NATIVE=1 $(BIN)/python -m tools.suite tests/loopback $(NATIVE_LAB)

# The wheel, an install, tests and a recording of this Python on others: PYTHONS="trixie forky python3.12" and the like.
test-pythons: setup wheel
	@bash tools/pythons.sh $(BIN)/python dist $(PYTHONS)

# What touches the kernel, on Debian's own kernels booted by qemu: KERNELS="bookworm trixie" and the like. Needs root.
test-kernels: setup
	@bash tools/kernels.sh $(BIN)/python $(KERNELS)

# Whatever reads a peer's bytes, for FUZZ_S seconds a target.
fuzz: setup
	@bash tools/fuzz.sh $(BIN)/python

# The native engine's unsafe code under sanitizers, and what becomes of panics in it.
sanitize: setup
	@bash tools/sanitize.sh address $(BIN)/python
	@bash tools/sanitize.sh thread $(BIN)/python
	@bash tools/sanitize.sh faults $(BIN)/python

unit loopback lab: setup
	$(BIN)/python -m pytest tests/$@

clean:
	rm -rf $(VENV) out build dist *.egg-info hive_qos_native*.so native/target
