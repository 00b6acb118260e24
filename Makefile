# Set-up and the everyday commands. `make help` lists them.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3.11
ENGINES ?= sglang==0.5.15 sglang==0.5.16 sglang==0.5.23
# More options for a command: make fuzz ARGS="--seed 1", make test ARGS="-k ring".
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Every install takes the constraints: a bare range would let pip change what was tested.
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
INSTALL := $(PIP) install --constraint constraints.txt
# Strict: only the packages' own files are importable, as in a real install. The link tree that
# makes it so is built at install time, hence again whenever a file comes or goes.
EDITABLE := --no-build-isolation --config-settings editable_mode=strict --editable
PACKAGES := cli determinism fuzz kernels model mutants proofs record spec triage

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=$(PYTHON)  ARGS=\"...\" for the command  KVPROOF_CACHE=... for the engines"

.PHONY: fuzz
fuzz: engines ## Set up and run the main job: fuzz every supported release
	$(BIN)/kvproof fuzz $(ARGS)

.PHONY: prove
prove: setup ## Set up and prove the theorems about the specification
	$(BIN)/kvproof prove $(ARGS)

# The page of `kvproof explain` is tested in a real browser: one that is there; in a container of
# Debian its package; else the one that playwright fetches. Without any, CI fails and others skip.
BROWSERS := chromium-headless-shell chromium chromium-browser google-chrome
.PHONY: browser
browser: setup ## Find or fetch the browser that tests need
	@for name in $(BROWSERS); do if command -v $$name >/dev/null; then exit 0; fi; done; \
	if [[ $$(id -u) == 0 ]] && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
	    chromium-headless-shell fonts-dejavu-core >/dev/null; then exit 0; fi; \
	$(BIN)/playwright install chromium-headless-shell || \
	  echo "no browser: install chromium, or the tests of the page are skipped" >&2

.PHONY: test
test: setup ## Set up and run the linter, the type checker and all tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --jobs 2 engines browser
	@$(MAKE) --jobs 2 types pytest

.PHONY: types
types: setup ## Run the type checker
	$(BIN)/mypy
	$(BIN)/mypy benchmarks examples

# Files in the order of collection (conftest.py), not by their number of tests.
.PHONY: pytest
pytest: setup ## Run the tests
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: commands
commands: setup ## Make docs/commands.md anew, from what the commands say of themselves
	$(BIN)/python -m typer kvproof.cli.app utils docs --name kvproof --title Commands \
	  --output docs/commands.md

.PHONY: setup
setup: $(VENV)/.installed ## Create the virtual environment and install kvproof

# No stamp: the store knows what is installed, and answers in well under a second.
.PHONY: engines
engines: setup ## Fetch the supported engine releases
	@$(BIN)/kvproof engine add $(ENGINES)

.PHONY: doctor
doctor: engines ## Say what works in each engine on this machine
	$(BIN)/kvproof engine doctor $(ARGS)

.PHONY: bench
bench: engines ## Measure everything on this machine; the results are one JSON file
	$(BIN)/python -m benchmarks $(ARGS)

# What kvproof requires is left out of the lock: see requirements.in.
LOCKED := kernels/engines/requirements
OWN := annotated-doc colorama filelock fsspec hypothesis jinja2 markdown-it-py markupsafe mdurl \
	mpmath msgspec networkx numpy packaging platformdirs pygments rich setuptools shellingham \
	sortedcontainers sympy torch triton typer typing-extensions z3-solver
.PHONY: lock
lock: setup ## Renew the lock file of what engines need
	$(INSTALL) uv
	@{ echo "# Made by \`make lock\` from requirements.in; do not edit."; \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --only-binary :all: \
	    --generate-hashes --no-annotate --no-header --constraint constraints.txt \
	    $(OWN:%=--no-emit-package %) $(LOCKED).in; } > $(LOCKED).lock.new
	mv $(LOCKED).lock.new $(LOCKED).lock

.PHONY: clean
clean: ## Remove everything that make and the tools made here; the engines stay in the cache
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(PACKAGES) tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "kvproof needs Python 3.11 or newer; set it with: make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# Rewritten only when the set of files changes, so that it is a cheap prerequisite.
$(VENV)/.files: $(VENV)/.created FORCE
	@find $(PACKAGES) -type f ! -name '*.pyc' | LC_ALL=C sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(VENV)/.installed: $(VENV)/.files constraints.txt pyproject.toml
	$(INSTALL) pip setuptools
	$(INSTALL) $(EDITABLE) '.[dev,cvc5]'
	touch $@

.PHONY: FORCE
FORCE:
