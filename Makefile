# Everything a clone needs: `make up`, `make test`, `make lint`. Only make and Python >= 3.11 are
# assumed; the environment in .venv is made from requirements.lock, with hashes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EDITABLE := $(VENV)/.editable
ARGS ?=
MINUTES ?= 3
SEED ?=

# An environment made in another folder (a moved or copied clone) points there: make it anew.
ifneq ($(shell cat $(INSTALLED) 2>/dev/null),$(CURDIR))
.PHONY: $(INSTALLED)
endif

.DEFAULT_GOAL := help
.PHONY: help install up test lint format faults bench lock clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

install: $(EDITABLE) ## make the environment in .venv (the other targets do it by themselves)

up: $(EDITABLE) ## start everything on this machine, show a tour, stay up until Ctrl-C (ARGS="--port 8080")
	@$(BIN)/skillfleet up --tour $(ARGS)

test: $(EDITABLE) ## run the tests against real services (ARGS="-k name")
	@$(BIN)/python -m pytest $(ARGS)

lint: $(EDITABLE) ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(EDITABLE) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

faults: $(EDITABLE) ## kill, freeze, flush and cut off under load (MINUTES=30 SEED=7)
	@SKILLFLEET_FAULT_SECONDS=$$(( $(MINUTES) * 60 )) $(if $(SEED),SKILLFLEET_FAULT_SEED=$(SEED)) \
		$(BIN)/python -m pytest -q -s tests/faults/test_chaos.py $(ARGS)

bench: $(EDITABLE) ## measure on this machine
	@$(BIN)/python -m tests.bench $(ARGS)

lock: ## resolve pyproject.toml anew into requirements.lock (needs uv)
	uv pip compile --universal --generate-hashes --no-emit-index-url --all-extras --upgrade \
		--quiet --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

clean: ## remove the environment and caches; data in .skillfleet stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build

$(INSTALLED): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "skillfleet needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." ; \
		echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" ; exit 1 ; } >&2
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) can't make virtual environments." ; \
		echo "On Debian and Ubuntu: apt-get install python3-venv" ; exit 1 ; } >&2
	@echo "Making $(VENV) from requirements.lock (once; about a minute) ..." >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@printf '%s' '$(CURDIR)' > $@

$(EDITABLE): $(INSTALLED) pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
