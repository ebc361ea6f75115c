# The everyday commands. `make help` lists them.
#   make test PYTHON=python3.12    another interpreter for the environment in .venv
#   make test TESTS=tests/unit     only some of the tests, one after the other

PYTHON ?= python3
TESTS ?=
# Tests of parts and screens wait more than they compute: three at a time take a third of the time on two cores. Tests
# on real hosts train, and tests of faults measure times: two at a time, and one.
PARTS ?= 3
HOSTS ?= 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c .ci/constraints.txt

# All but torch and what it needs, whose files differ with the index, is compared with the hashes that are kept here.
HASHED := $(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes
LOCK := uv pip compile pyproject.toml --quiet -c .ci/constraints.txt --universal --python-version 3.10 \
	--generate-hashes --no-annotate --custom-compile-command 'make lock'

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-8s %s\n", $$1, $$2 }' Makefile

demo: .venv/train ## Train on two SSH hosts played by this machine
	$(BIN)/disttui run profiles/2node.yaml --sandbox

test: lint ## Check everything: lint, types, walls, tests
ifneq ($(TESTS),)
	$(BIN)/pytest $(TESTS)
else
	$(BIN)/pytest -n $(PARTS) tests/unit tests/tui
	$(BIN)/pytest -n $(HOSTS) tests/cluster
	$(BIN)/pytest tests/faults tests/bench
endif

lint: .venv/dev ## Style, types, the walls between the parts, the Python of the hosts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests --exclude '^tests/data/'
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --no-tips --violations --target=3.8- runner/node runner/protocol
	$(BIN)/vermin --quiet --no-tips --violations --target=3.9- runner/train

bench: .venv/dev ## Measure against bare torchrun by hand (needs root; see docs/performance.md)
	$(BIN)/python -m tests.bench

lock: ## Write requirements.lock and .ci/dev.lock anew from .ci/constraints.txt (needs uv)
	$(LOCK) -o requirements.lock
	$(LOCK) --extra dev -o .ci/dev.lock

clean: ## Remove the environment and everything that was built
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are files inside .venv, so that they go with it.
.venv/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "disttui needs Python 3.10 or later: make PYTHON=/path/to/python3.12 …" >&2; exit 1; }
	$(PYTHON) -m venv .venv || \
		{ echo "$(PYTHON) cannot make an environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	touch $@

.venv/train: .venv/python pyproject.toml .ci/constraints.txt requirements.lock
	@echo "Installing disttui and torch into .venv (once; minutes where torch must be downloaded) …"
	$(HASHED) -r requirements.lock
	$(PIP) -e '.[train]'
	touch $@

.venv/dev: .venv/train .ci/dev.lock
	$(HASHED) -r .ci/dev.lock
	$(PIP) -e '.[train,dev]'
	touch $@
