# make run | test | lint | bench | clean.  Set-up goes into .venv and is done again when pyproject.toml changes.

# The interpreter to build .venv with: 3.11 or newer. The first of these that runs is used.
PYTHON ?= python3
# Where pip finds torch, if your index offers only the (large) CUDA build: the address of the PyTorch project's CPU index.
#   make run TORCH_INDEX=<address>
TORCH_INDEX ?=

BIN := .venv/bin
# CI sets this: then a skipped test counts as failed.
export CCBED_TESTS_REQUIRE ?=
# Without bytecode each start compiles again: collection takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

# The parts of `make test-all`: every axis. They can run side by side elsewhere; the workflow of CI has a job for each.
AXES := units beds containers hosts slurm attack lab

.PHONY: test-jobs test-collectives test-nightly help run check test test-all $(AXES:%=test-%) durations mutants judge-matrix test-frameworks attack fuzz test-gpu wheels lint format bench bench-growth against clean lab-up lab-down engine
.DEFAULT_GOAL := help

help:
	@echo "make run     set up, bring up a bed of five local nodes, train, lose node 2, recover, verify"
	@echo "make check   style, types, imports, walls and all fast tests: a minute and a half; run it after each change"
	@echo "make test    everything real once, as CI does      make lint    style, types, imports"
	@echo "make test-all    every axis; its parts: make test-units test-beds test-containers test-hosts test-slurm test-attack test-lab"
	@echo "make test-jobs    the tests of a product; also test-collectives test-nightly test-slurm"
	@echo "make durations   renews the list of slow tests      make mutants   how many of 60 faults of the product do the tests notice?"
	@echo "make test-frameworks FRAMEWORK=hf    jobs of Hugging Face, Lightning, DeepSpeed and FSDP2, right and broken, judged"
	@echo "make attack  kills, edits, hostile bundles and fuzzed inputs, all of them; make fuzz SCALE=10 SEED=3: more inputs"
	@echo "make test-gpu PYTHON=PATH    tests on one GPU with the CUDA torch of that interpreter, offline; PARTS=nccl,digests: some of them"
	@echo "make wheels PYTHON_VERSION=3.12    gathers what that interpreter lacks, where there is a network"
	@echo "make lab-up  three hosts on this machine, as root: ccbed up inventories/lab.yml; make lab-down; make test-lab"
	@echo "make bench   ratios against torchrun, into tests/bench/out"
	@echo "make bench-growth   how cost grows with steps, ranks, files and runs"
	@echo "make against REF=COMMIT  is this checkout slower than a commit? MEASURES=start,failover,failover-ddp,up,dry-run,check PAIRS=30"
	@echo "make clean   remove the environment and everything that was built; take beds down first: ccbed down"

.venv/.run-stamp: pyproject.toml .ci/setup
	@PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" .ci/setup run

.venv/.dev-stamp: .venv/.run-stamp
	@PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" .ci/setup dev

run: .venv/.run-stamp
	$(BIN)/ccbed up inventories/local.yml
	$(BIN)/ccbed run dp-ring --fail-node 2
	@echo "the bed stays up; to take it down: $(BIN)/ccbed down local"

# Files of tests run side by side: most of them wait for processes.
JOBS ?= 3
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder -n

check: lint
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --circle check tests/arch tests/unit tests/sim tests/contract

test: .venv/.dev-stamp engine
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(JOBS) --circle test

test-all: $(AXES:%=test-%)

$(AXES:%=test-%): test-%: .venv/.dev-stamp engine
	$(if $(filter lab,$*),CCBED_LAB=1) $(BIN)/python -m pytest $(SIDE_BY_SIDE) $(JOBS) --part $*

# A product's tests. Those of slurm are an axis too.
test-jobs test-collectives test-nightly: test-%: .venv/.dev-stamp
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(JOBS) $(wildcard tests/unit/$* tests/e2e/$*)

# On an idle machine, beside nothing else.
durations: .venv/.dev-stamp engine
	$(eval RECORDS := $(shell mktemp -d))
	CCBED_DURATIONS=$(RECORDS) $(BIN)/python -m pytest $(SIDE_BY_SIDE) $(JOBS) --circle test
	$(BIN)/python -m tests.durations $(RECORDS)
	rm -r $(RECORDS)

# Mutations of the product, in copies of the tree. ARGS: ids, --jobs 1, or --accept to renew tests/mutants/survivors.txt.
ARGS ?=

mutants: .venv/.dev-stamp
	$(BIN)/python -m tests.mutants $(ARGS)

# Draws jobs, breaks and judges each, and compares the verdicts with what is true. FIRST leaves out draws, so that parts can run apart.
COUNT ?= 8
FIRST ?= 0

judge-matrix: .venv/.dev-stamp
	$(BIN)/python -m tests.jobs --seed $(or $(SEED),1) --count $(COUNT) --first $(FIRST)

# Jobs of frameworks, in an environment for each family beside the torch of .venv. FRAMEWORK: hf, lightning, deepspeed, torchdata or torch (FSDP2).
test-frameworks: .venv/.dev-stamp
	$(BIN)/python -m tests.frameworks $(or $(FRAMEWORK),all) $(if $(ONLY),--only "$(ONLY)")

# Attacks are seeded; SCALE 1 makes all of them, 0.05 those of `make test`.
SCALE ?= 1
SEED ?=

attack: .venv/.dev-stamp
	CCBED_ATTACK_SCALE=$(SCALE) CCBED_ATTACK_SEED=$(SEED) $(BIN)/python -m pytest tests/attack tests/e2e/test_killed_at_every_line.py

fuzz: .venv/.dev-stamp
	CCBED_ATTACK_SCALE=$(SCALE) CCBED_ATTACK_SEED=$(SEED) $(BIN)/python -m pytest tests/attack/test_fuzz.py

# Tests on a GPU: no root, engine or network. PARTS: names of the files tests/gpu/test_NAME.py; OUT: where report.json is written.
# Where it cannot run, the program exits with 3, which make prints as "Error 3".
PARTS ?=
OUT ?= tests/gpu/out
PYTHON_VERSION ?= 3.12

test-gpu:
	@"$(PYTHON)" -m tests.gpu run --parts "$(PARTS)" --out "$(OUT)"

# The wheels that test-gpu installs beside PYTHON's packages, into wheels/PYTHON_VERSION; bring that folder along to the GPU.
wheels:
	@"$(PYTHON)" -m tests.gpu wheels "$(PYTHON_VERSION)"

# Installs what tests of containers and hosts need, as root on Debian or Ubuntu; it prints what it installs.
engine:
	@PYTHON="$(PYTHON)" .ci/setup engine

# A lab of hosts on this machine (root; tests/lab/README.md):  sudo make lab-up HOSTS=5 RATE=1gbit
# If no container engine runs here, one is started while the image is built and copied to the hosts.
HOSTS ?= 3
RATE ?=

lab-up: .venv/.run-stamp engine
	$(BIN)/python tests/lab/own_engine.py sh -ec '$(BIN)/ccbed image build; \
		$(BIN)/python tests/lab/lab.py up --hosts $(HOSTS) --rate "$(RATE)" --image ccbed/cpu:2.13.0'

lab-down:
	$(PYTHON) tests/lab/lab.py down

lint: .venv/.dev-stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: .venv/.dev-stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Is this checkout slower than a commit?  make against REF=HEAD~1 MEASURES=start,failover PAIRS=10
REF ?=
MEASURES ?=
PAIRS ?=

against: .venv/.dev-stamp
	$(BIN)/python -m tests.bench.against "$(REF)" --measures "$(MEASURES)" --pairs "$(PAIRS)"

bench: .venv/.dev-stamp
	$(BIN)/python -m pytest tests/bench -m bench -s --ignore-glob="*test_growth_*"

# How bytes, memory and time grow with steps, ranks, files and runs: minutes, not in make test and make bench.
bench-growth: .venv/.dev-stamp
	$(BIN)/python -m pytest tests/bench/test_growth_*.py -m bench -s

clean:
	rm -rf .venv .venv-bootstrap .venv-gpu wheels build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache tests/bench/out tests/gpu/out
	find orchestrator tests -name __pycache__ -type d -prune -exec rm -rf {} +
