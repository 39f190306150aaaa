# Two commands for a fresh clone: `make demo` and `make test`. Each installs what it needs into .venv, once.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: help demo quick test torture mutants check docs format results clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1	/'

demo: $(INSTALLED)  ## learn Split Digits from an unlabelled stream and write runs/demo/report.html
	$(VENV)/bin/hge demo

quick: $(INSTALLED)  ## while writing: doctests and fast tests, in less than a minute
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest -n 2 -q -m "not slow and not data"

test: $(INSTALLED) check docs  ## all checks, the docs and all tests
	$(VENV)/bin/pytest -n 2

torture: $(INSTALLED)  ## kills, bad inputs, corrupted files, a long run: a quarter of an hour or more; writes results/torture.json
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m torture

mutants: $(INSTALLED)  ## change the code at 150 places and list the changes that no test notices; writes results/mutants.json
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/mutants.py

check: $(INSTALLED)  ## format, lint, types, layers
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

docs: $(INSTALLED)  ## build the documentation into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

format: $(INSTALLED)  ## format and fix what can be fixed
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

results: $(INSTALLED)  ## generate the tables of README and docs from results/
	$(VENV)/bin/python benchmarks/readme.py

clean:  ## remove the virtual environment, runs and caches
	rm -rf $(VENV) runs site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "hge needs Python 3.11 or newer; try: make demo PYTHON=python3.12"; exit 1; }
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev]'
	@touch $@
