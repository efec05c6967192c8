# Everything sets itself up in .venv; nothing outside the project is changed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
JOBS ?= 2
READY := $(VENV)/.ready
# Two test processes share the machine: one thread each is faster than two fighting.
# Bytecode is written, even where it is off: to prepare the assertions of all files again takes ten seconds.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-gpu gpu-check bench check format clean

help: ## show this help
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

install: $(READY) ## set up .venv with pinned versions

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed, $$($(PYTHON) --version) found; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## run the whole pipeline on the embedded corpus, to a report
	PATH="$(BIN):$$PATH" $(BIN)/dvc repro report@demo
	@echo "report: $(CURDIR)/data/report/demo/report.html"

test: $(READY) ## run the tests (six to nine minutes on two idle cores)
	$(PYTEST) -n $(JOBS)

test-slow: $(READY) ## run the tests that take minutes
	$(PYTEST) -m slow

test-gpu: $(READY) ## run the tests that need a GPU; without one they are skipped
	$(PYTEST) -m gpu -rs

gpu-check: $(READY) ## prove the GPU path: tests and figures beside their goals (half an hour on one GPU; some: BLOCKS=facts)
	PATH="$(BIN):$$PATH" $(BIN)/python -m benchmarks.gpu_check $(BLOCKS)

bench: $(READY) ## measure time and memory, as ratios (half an hour on two idle cores; some: make bench NAMES=startup)
	PATH="$(BIN):$$PATH" $(BIN)/python -m benchmarks $(NAMES)

check: $(READY) ## lint, format, types, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell daamctl benchmarks tests pipelines docs *.md
	$(BIN)/daamctl check

format: $(READY) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove unfinished work (finished artifacts and corpora stay)
	rm -rf data/.work
