# The everyday commands. `make help` lists them.
#   make check                     before every commit: a few minutes, no root, no torch
#   make test                      before every merge: real hosts too, as root, with torch
#   make soak                      before every release: long cuts, chaos, floods, all variants
#   make test PYTHON=python3.12    another interpreter for the environment in .venv
#   make test TESTS=tests/unit     only some of the tests, one after the other

PYTHON ?= python3
TESTS ?=
# How many tests run at a time, for two cores: most wait for hosts and screens some of their time.
JOBS ?= 5
N ?= 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c .ci/constraints.txt

# All but torch and what it needs, whose files differ with the index, is compared with the hashes that are kept here.
HASHED := $(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes
LOCK := uv pip compile pyproject.toml --quiet -c .ci/constraints.txt --universal --python-version 3.10 \
	--generate-hashes --no-annotate --custom-compile-command 'make lock'

# The tests start many hundred Python programs: what each of them would compile anew is kept, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo check test soak rewritten lint style types walls parts bench cluster lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-8s %s\n", $$1, $$2 }' Makefile

demo: .venv/train ## Train on two SSH hosts played by this machine
	$(BIN)/disttui run profiles/2node.yaml --sandbox

check: .venv/tools ## Lint, and the tests of parts and screens that need neither root nor torch
	$(MAKE) --no-print-directory -j2 parts lint

test: .venv/dev ## Everything: lint, and all tests (as root on Linux)
	$(MAKE) --no-print-directory -j2 lint rewritten
ifneq ($(TESTS),)
	$(BIN)/pytest $(TESTS)
else
	$(BIN)/pytest -m 'not soak' -n $(JOBS) --dist worksteal tests
endif

soak: .venv/dev ## The long rest of the tests (tests/soak.txt), and a million random inputs: an hour, before a release
	DISTTUI_FUZZ=1000000 $(BIN)/pytest -n 2 --dist worksteal tests/unit/test_gang_fuzz.py
	DISTTUI_EXITS=2000 $(BIN)/pytest tests/unit/test_cli_process.py -k thread
	$(BIN)/pytest -m soak -n 3 --dist worksteal tests
	$(BIN)/python -m tests.bench 3

# pytest keeps the assertions that it has rewritten; otherwise each of its workers would do so again.
rewritten: .venv/tools
	$(BIN)/pytest --collect-only -qq tests >/dev/null

lint: style types walls ## Style, types, the walls between the parts, the Python of the hosts

style: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/tools
	$(BIN)/mypy

walls: .venv/tools
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --no-tips --violations --target=3.8- runner/node runner/protocol
	$(BIN)/vermin --quiet --no-tips --violations --target=3.9- runner/train

parts: .venv/tools
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal -m 'not (cluster or root or torch or frameworks or openmpi or slurm or tmux or slow or soak)' tests/unit tests/tui

cluster: .venv/tools ## Two hosts on this machine to try things on, until Ctrl-C (as root on Linux; N=3: three)
	$(BIN)/python -m tests.cluster $(N)

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

.venv/tools: .venv/python pyproject.toml .ci/constraints.txt .ci/dev.lock
	@echo "Installing disttui and what checks it into .venv (once) …"
	$(HASHED) -r .ci/dev.lock
	$(PIP) -e '.[dev]'
	touch $@

# Other people's frameworks, apart from what disttui itself is tested with; .pth lets them see torch.
.venv/frameworks/installed: .venv/train .ci/frameworks.txt
	@echo "Installing accelerate, transformers, lightning and deepspeed into .venv/frameworks (once) …"
	$(BIN)/python -m venv --clear --without-pip .venv/frameworks
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		>"$$(.venv/frameworks/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
	DS_BUILD_OPS=0 $(BIN)/python -m pip --python .venv/frameworks/bin/python install --disable-pip-version-check --quiet \
		--no-build-isolation -c .ci/constraints.txt -r .ci/frameworks.txt
	touch $@

# torch does without numpy, but says so; nearly all who train have it.
.venv/dev: .venv/tools .venv/train .venv/frameworks/installed
	$(PIP) numpy
	touch $@
