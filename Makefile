# make run | test | lint | bench | clean.  Set-up goes into .venv and is done again when pyproject.toml changes.

# The interpreter to build .venv with: 3.11 or newer. The first of these that really runs is taken.
PYTHON ?= python3
# Where pip finds torch, if your index offers only the (large) CUDA build: the address of the PyTorch project's CPU index.
#   make run TORCH_INDEX=<address>
TORCH_INDEX ?=

export PYTHON TORCH_INDEX
BIN := .venv/bin
# What CI sets: a skipped test is then a failed one.
export CCBED_REQUIRE ?=

.PHONY: help run test test-gpu lint format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make run     set up, bring up a bed of five local nodes, train, lose node 2, come back, prove it"
	@echo "make test    all tests        make lint    style, types, imports"
	@echo "make test-gpu    ranks on GPUs; needs an NVIDIA GPU and TORCH_INDEX of a CUDA build"
	@echo "make bench   ratios against torchrun, into tests/bench/out"
	@echo "make clean   remove the environment and everything that was built; take beds down first: ccbed down"

.venv/.run-stamp: pyproject.toml .ci/setup
	@.ci/setup run

.venv/.dev-stamp: .venv/.run-stamp
	@.ci/setup dev

run: .venv/.run-stamp
	$(BIN)/ccbed up inventories/local.yml
	$(BIN)/ccbed run dp-ring --fail-node 2
	@echo "the bed stays up; to take it down: $(BIN)/ccbed down local"

test: .venv/.dev-stamp
	$(BIN)/python -m pytest

test-gpu: .venv/.dev-stamp
	$(BIN)/python -m pytest tests/gpu -m gpu

lint: .venv/.dev-stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: .venv/.dev-stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev-stamp
	$(BIN)/python -m pytest tests/bench -m bench -s

clean:
	rm -rf .venv .venv-bootstrap build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache tests/bench/out
	find orchestrator tests -name __pycache__ -type d -prune -exec rm -rf {} +
