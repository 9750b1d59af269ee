# Each target does its own set-up. A comment of the form `target: ## text` is a line of `make help`, `##@` heads a group.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard native/Cargo.toml native/Cargo.lock) $(shell find native/src -name '*.rs')

.PHONY: help
help: ## Show these lines
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ See it
.PHONY: demo bench bench-collectives bench-broker bench-volatile bench-processor bench-nightly
demo: setup ## Train on two hosts while storage floods their link, five minutes; DEMO=--strict judges it
	@$(BIN)/python -m tools.demo run --output out/demo $(DEMO)

bench: setup ## Engines beside Gloo, iperf3, kernel TCP, half an hour; BENCH="--quick loopback" for less
	@bash tools/bench/setup.sh
	@$(BIN)/python -m tools.bench $(BENCH)

bench-collectives: setup ## Collectives beside Gloo on several networks, an hour; BENCH="--quick lan" for less
	@$(BIN)/python -m tools.collectivesbench $(BENCH)

bench-broker: setup ## The broker beside what tc can do, nearly two hours; BENCH="--quick sender" for less
	@$(BIN)/python -m tools.brokerbench $(BENCH)

bench-volatile: setup ## Training on machines that come and go, two hours; BENCH="--quick churn" for less
	@$(BIN)/python -m tools.volatilebench $(BENCH)

# The demo's rsync over a link of its own, beside none.
bench-processor: setup ## What storage costs the processors, whatever its link
	@$(BIN)/python -m tools.demo run --phases idle,other-link --rounds 6 --output out/bench-processor

##@ Work on it
.PHONY: setup check format unit loopback lab crate test coverage docs
setup: $(VENV)/.setup-done ## Make the environment in .venv: packages, the native engine where cargo is

# Where only the crate has changed, only the package itself is installed again: cargo builds what changed of it.
$(VENV)/.setup-done: pyproject.toml setup.py tools/setup.sh $(NATIVE)
	@if [[ -e $@ && -z "$(filter-out $(NATIVE),$?)" ]]; then \
	  bash tools/setup.sh --package-only "$(VENV)"; \
	else \
	  bash tools/setup.sh "$(PYTHON)" "$(VENV)"; \
	fi
	@touch $@

format: setup ## Let ruff rewrite
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: setup ## Formats, lint, types and import contracts, of Python and Rust
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@bash tools/cargo.sh check $(BIN)/python

unit: setup ## Tests without sockets or privileges, seconds
loopback: setup ## Tests over real UDP and Unix sockets, unprivileged
lab: setup ## Tests on hosts in network namespaces, as root
unit loopback lab:
	$(BIN)/python -m pytest tests/$@

# A broken link is an error. Only this target needs the tool, so it is no part of the set-up.
docs: setup ## The documents as a site, in out/site
	@$(BIN)/python -c 'import zensical' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@$(BIN)/zensical build --strict --clean

crate: setup ## The native engine's own tests
	@bash tools/cargo.sh test $(BIN)/python

test: setup ## Checks and all of these tests side by side, 16 minutes on two cores; what CI runs
	@$(BIN)/python -m tools.suite

coverage: setup ## Lines that unit and loopback tests reach, in out/coverage; COVERAGE=tests/unit for less
	@bash tools/coverage.sh $(BIN)/python $(COVERAGE)

##@ At night
.PHONY: nightly test-long test-engines test-torch test-torch-oldest test-gpu fuzz sanitize sanitize-address sanitize-thread sanitize-faults test-pythons test-kernels test-page test-storage test-etcd test-churn test-crowded test-chart test-image test-deb audit
nightly: setup ## All below, a short benchmark, unstable tests, in hours; NIGHTLY="fuzz bench" for less
	@$(BIN)/python -m tools.nightly $(NIGHTLY)

# Those of the lab in which engines run.
ENGINES_LAB := $(wildcard tests/lab/engines/test_*.py tests/lab/daemon/test_engine_*.py)

test-long: setup ## Tests of five seconds and more each that make test leaves out; as root, in ten minutes
	$(BIN)/python -m pytest -m long tests/unit tests/loopback tests/lab
	@bash tools/cargo.sh test-long $(BIN)/python

test-engines: setup ## Engines and transport over both engines, and over mixed pairs
	HIVE_TEST_ENGINES=all $(BIN)/python -m tools.suite tests/loopback $(ENGINES_LAB)

test-torch: setup ## PyTorch's own distributed tests, its compiler, Lightning, torchft, in ten minutes
	@$(BIN)/python -c 'import accelerate, lightning, torchft' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["frameworks"])')
	@command -v g++ >/dev/null || apt-get install --yes --quiet --no-install-recommends g++
	$(BIN)/python -m pytest tests/torch_suite
	HIVE_TEST_COMPILER=inductor $(BIN)/python -m pytest tests/loopback/integrations/test_torch_training.py -k compiled

test-torch-oldest: setup ## The integrations' tests on the oldest torch, 1 GB; OLDEST=--selection for less
	@bash tools/oldest_torch.sh $(BIN)/python $(OLDEST)

GPU_TESTS := test_torch_cuda test_torch_training test_torch_collectives test_torch_compression \
  $(addprefix test_volatile_,algorithms diloco streaming partial_mean asynchronous a2cid2)

test-gpu: setup ## The integrations' tests with tensors on a CUDA GPU, which ranks may share
	@$(BIN)/python -c 'import torch; assert torch.cuda.is_available(), "torch finds no CUDA GPU here"'
	HIVE_TEST_DEVICE=cuda $(BIN)/python -m pytest tests/unit/integrations/test_integrations_staging.py \
	  $(GPU_TESTS:%=tests/loopback/integrations/%.py)

fuzz: setup ## Whatever reads a peer's bytes, for FUZZ_S seconds a target
	@bash tools/fuzz.sh $(BIN)/python

sanitize: sanitize-address sanitize-thread sanitize-faults ## The native engine under sanitizers, and with panics in all its places
sanitize-address sanitize-thread sanitize-faults: sanitize-%: setup
	@bash tools/sanitize.sh $* $(BIN)/python

test-pythons: setup wheel ## Install, tests and a recording on other Pythons: PYTHONS="trixie python3.12"
	@bash tools/pythons.sh $(BIN)/python dist $(PYTHONS)

test-storage: setup ## Syncthing and rclone themselves beside a broker, in the lab; as root, 3 minutes
	@bash tools/storage_programs.sh $(BIN)/python

test-etcd: setup ## Volatile groups with Debian's etcd as their register, in a minute
	@bash tools/etcd.sh $(BIN)/python

test-churn: setup ## Random kills and cut links in a volatile group, 10 minutes; CHURN="--seconds 30" for less
	@rm -rf out/churn
	@$(BIN)/python -m tools.measure.volatile_churn --keep out/churn $(CHURN)

test-crowded: setup ## Groups' tests in six copies at once, with threads that change often, in 20 minutes
	@$(BIN)/python -m tools.crowded

test-kernels: setup ## What touches the kernel, on Debian's kernels in qemu, as root: KERNELS="bookworm trixie"
	@bash tools/kernels.sh $(BIN)/python $(KERNELS)

test-page: setup ## The status page in headless Chromium, metrics and alert rules by promtool, as root
	@bash tools/page.sh $(BIN)/python

test-chart: setup ## The Helm chart by Helm's engine and Kubernetes' schemas, 0.4 GB
	@bash tools/chart.sh $(BIN)/python

test-image: image ## The container image's tree at work in the lab, with the chart's capabilities
	PYTHONPATH=tests:tests/lab $(BIN)/python -m pytest tests/image

test-deb: setup deb ## The Debian package through lintian and under systemd, as root: SUITES=trixie
	@bash tools/deb/test.sh $(BIN)/python

audit: ## Vulnerabilities, licences and sources of dependencies; needs the network
	@bash tools/audit.sh "$(PYTHON)"

bench-nightly: setup
	@bash tools/bench/setup.sh
	@$(BIN)/python -m tools.nightly.bench

##@ Release it
.PHONY: wheel image deb lock clean
wheel: ## Wheels with and without the native engine, in dist/; WHEELS="aarch64 any" for others
	@bash tools/wheel.sh "$(PYTHON)" dist $(WHEELS)

image: setup wheel ## A container image with that wheel, in out/image, as root
	@bash tools/image.sh $(BIN)/python dist

deb: wheel ## The Debian package, for Debian 12 and 13, in dist/
	@bash tools/deb/build.sh "$(PYTHON)" dist

lock: ## New versions and hashes of what runs as root, in requirements.lock; review them
	@bash tools/lock.sh "$(PYTHON)"

clean: ## Remove everything that targets made here
	rm -rf $(VENV) out build dist *.egg-info hive_qos_native*.so native/target
