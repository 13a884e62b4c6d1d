# Every command of this repository. `make help` lists them; each needs only Python 3.11, make, a C compiler and,
# the first time, a package index.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# Without byte code every process that the tests start compiles its libraries anew, which doubles the time.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.muniment-setup
# The first one that runs and is new enough: a version manager's shim may stand there without a Python behind it.
ifndef PYTHON
PYTHON := $(shell for p in python3.11 python3 python3.12 python3.13 python; do \
  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && command -v "$$p" && break; done)
endif
DATA ?= .muniment
# One more than the cores of a small machine: processes under test wait for each other, and each worker starts servers.
JOBS ?= 3
PYTEST := $(BIN)/python -m pytest
# In the order of collection, which puts the longest files first: the last ones to end are short.
SPREAD := -n $(JOBS) --dist loadfile --no-loadscope-reorder
TYPED := $(wildcard api audit connectors erasure ledger registry retention vault client/src infra tests bench)
FAST := not files and not postgres and not s3 and not process and not slow

.PHONY: help setup demo serve test test-unit test-all check bench lock services services-down clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## install everything at the locked versions into .venv (again: instant)

# uv itself is taken from the lock by pip, then does the rest: same hashes, a tenth of the time. Where its wheel does
# not run, pip installs all of it. Nothing is ever removed from an environment that is already there.
$(STAMP): requirements.lock pyproject.toml client/pyproject.toml
	@test -n "$(PYTHON)" || { echo "make setup: no Python 3.11 or newer found; install Python 3.11 or set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "make setup: $(PYTHON) does not run or is older than Python 3.11; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "installing the locked versions into $(VENV) (about half a minute, once)" >&2
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@awk '/^uv==/ {on=1} on {print} on && !/\\$$/ {exit}' requirements.lock > $(VENV)/uv.lock.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r $(VENV)/uv.lock.txt
	@if $(BIN)/uv --version >/dev/null 2>&1; then \
	  VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(BIN)/uv pip install -q --require-hashes -r requirements.lock; \
	  VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(BIN)/uv pip install -q --no-deps --no-build-isolation -e client -e .; \
	else \
	  $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock; \
	  $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e client -e .; \
	fi
	@$(PYTEST) -q --collect-only >/dev/null || true # writes the byte code of all that the tests import, once
	@touch $(STAMP)

demo: setup ## the main job end to end on embedded stores, in a temporary folder
	@$(BIN)/muniment demo

serve: setup ## run the service on $(DATA); makes the data folder the first time
	@test -e $(DATA) || $(BIN)/muniment init --data $(DATA)
	@exec $(BIN)/muniment serve --data $(DATA)

test: setup ## the whole suite, long tests sampled
	@$(PYTEST) -q $(SPREAD) -m "not slow"

test-unit: setup ## rules and formats only, under a minute
	@$(PYTEST) -q -m "$(FAST)"

test-all: setup ## everything at full length
	@MUNIMENT_TEST_FULL=1 $(PYTEST) -q $(SPREAD)

check: setup ## lint, format, types, architecture
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(TYPED)
	@$(BIN)/lint-imports --no-cache
	@$(PYTEST) -q tests/house

bench: setup ## the measurements behind the numbers in the documentation
	@shopt -s nullglob; for program in bench/[a-z]*.py; do echo "== $$program"; name=$${program##*/}; $(BIN)/python -m "bench.$${name%.py}"; done

lock: setup ## resolve the dependencies anew and write requirements.lock
	@$(BIN)/uv lock -q --upgrade
	@$(BIN)/uv export -q --frozen --no-header --no-emit-project --no-emit-package muniment --all-groups --all-extras -o requirements.lock

services: setup ## start PostgreSQL and S3 for development, print their addresses
	@$(BIN)/python -m infra.services up

services-down: setup ## stop them
	@$(BIN)/python -m infra.services down

clean: ## remove caches and build output; keeps .venv and data
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
