PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
CHECKED := tracekit runners analysis tests setup.py
# Processes that share the tests: as many as a small machine has cores.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast coverage lint types pytest fuzz fuzz-ledger bench-read bench-analyse bench-process bench-linear browser lab \
  docs-tables docs-strategies claims clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install everything pinned in constraints.txt

demo: $(STAMP) ## record FSDP2 and ZeRO-2 on this machine, analyse both, write the dashboard
	$(BIN)/tracekit demo

test: $(STAMP) browser lint types pytest ## lint, types and the whole test suite

test-fast: $(STAMP) lint ## lint and the quick tests: none that trains, drives a browser or is marked slow
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not integration and not browser and not corpus and not slow"

coverage: $(STAMP) ## the test suite, and every line of the packages that it does not reach
	$(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term-missing:skip-covered

lint: $(STAMP) ## ruff, rules and format
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)

types: $(STAMP) ## pyright, strict on the packages
	$(BIN)/pyright --pythonpath $(BIN)/python

pytest: $(STAMP) ## the test suite alone
	$(BIN)/python -m pytest -n $(WORKERS)

fuzz: $(STAMP) ## damage traces at random, N (20000) times from SEED (0), and check what the reader makes of them
	$(BIN)/python tests/fuzz/fuzz.py

fuzz-ledger: $(STAMP) ## record random models and loops, N (300) of SEED (0), and hold plan and sentences against them
	$(BIN)/python tests/fuzz/ledger.py

bench-read: $(STAMP) ## time and memory of reading, side by side with HTA and the floor (about six minutes)
	$(BIN)/python tests/bench/read.py

bench-analyse: $(STAMP) ## time of analysing eight ranks, side by side with HTA
	$(BIN)/python tests/bench/analyse.py

bench-process: $(STAMP) ## time of whole commands, imports included, side by side with HTA
	$(BIN)/python tests/bench/process.py

bench-linear: $(STAMP) ## time and memory of all tables and the report against the number of events and of ranks
	$(BIN)/python tests/bench/linear.py

lab: $(STAMP) ## record STRATEGY (fsdp2) on HOSTS (2) in namespaces of this machine, links of RATE (1gbit); needs root
	$(BIN)/python -m runners.lab --hosts $(or $(HOSTS),2) --rate $(or $(RATE),1gbit) --strategy $(or $(STRATEGY),fsdp2) $(ARGS)

docs-tables: $(STAMP) ## write docs/tables.md, the reference of all tables, from the registry
	$(BIN)/python -m tracekit.export.table_reference docs/tables.md

docs-strategies: $(STAMP) ## write docs/strategies.md, what each strategy is and how it is planned, from the registry
	$(BIN)/python -m tracekit.plan.strategies_page > docs/strategies.md

claims: $(STAMP) ## answer common claims about ZeRO's volume from recorded and proved numbers, in docs/claims.md
	$(BIN)/python analysis/claims.py

clean: ## remove .venv, caches and outputs
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	find . -name __pycache__ -prune -exec rm -rf {} +

# DeepSpeed is published as source only, and its build asks for the torch of the environment that it will run in: so torch
# comes first, and DeepSpeed is built without an environment of its own. The project itself is found by its path, since
# beside a checkout called tracekit any other way of an editable install finds the checkout and not the package in it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("tracekit needs Python 3.11 or newer; run make PYTHON=... with one") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt setuptools wheel torch
	$(PIP) install -q -c constraints.txt --no-build-isolation deepspeed
	$(PIP) install -q -c constraints.txt --config-settings editable_mode=compat -e ".[hta,record,deepspeed,viewer,dev]"
	@touch $@

# The browser tests use Debian's Chromium. Only root can install it; elsewhere those tests skip and say so.
browser:
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; } >/dev/null \
	    || echo "chromium could not be installed: the browser tests will skip"; \
	else echo "no chromium here and no right to install it: the browser tests will skip"; fi
