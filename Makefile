# Every target does its own set-up: a virtual environment in .venv with the versions of constraints.txt.
# Needed on the machine: make and Python 3.11 or later. `make help` lists the targets.

VENV ?= .venv
# Tried in this order; override with `make PYTHON=/path/to/python`. The pinned versions are tested on 3.11.
PYTHON ?= python3.11 python3.12 python3.13 python3.14 python3 python
# Where torch's CPU builds lie. Asked only if pip cannot find the pinned build in the places it is configured for.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# What `make train` trains, and more flags for it: make train ENV_ID=Acrobot-v1 ARGS="--seed 3"
ENV_ID ?= CartPole-v1
ARGS ?=
# Unit tests run in parallel, one process a core and four at most: each loads both engines.
TEST_WORKERS ?= -n auto --maxprocesses 4

# The environment of `make test-lowest`.
LOWEST ?= .venv-lowest
# What `make check-wheel` installs, one after another, and a file that limits the versions: the newest by default.
EXTRAS ?= none torch export render conformance brax mujoco box2d all
CONSTRAINTS ?=
# How many random networks `make test-nightly` checks, and the number of the first.
NETWORKS ?= $(if $(PART),100,500)
NETWORKS_SEED ?= $(if $(PART),$$(( ($(PART) - 1) * 100 )),0)
# Which fifth of the nightly tests to run, 1 to 5; all by default.
PART ?=
# Most of the time of all these tests is compiling: little is optimised, and fused loops are emitted in XLA's older and
# quicker way. The nightly conformance suite is compiled as users compile.
UNOPTIMISED ?= --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 \
	--xla_cpu_use_fusion_emitters=false

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Written after an installation and newer than the files that decide it, so a second `make` installs nothing.
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs
BENCH := $(VENV)/.installed-bench
# One thread for each test process: two that wait for each other on few cores are many times slower.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
ENGINES := --backend jax --backend torch --backend numpy
SPLIT = $(if $(PART),--splits 5 --group $(PART))
# `make train` installs without compiling thousands of files it never imports; let Python keep those that it does.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup train test test-unit test-conformance test-nightly test-lowest check check-wheel lint format docs \
	bench learning clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

setup: $(DEV) ## create .venv and install everything, once

train: $(RUN) ## train on CartPole-v1 (ENV_ID=..., ARGS="..."; MULTIPPO_BACKEND=jax|torch)
	$(BIN)/multippo train $(ENV_ID) $(ARGS)

test: test-unit test-conformance ## unit tests, then conformance on every engine

test-unit: $(DEV) ## unit tests, and the examples in docstrings on both engines
	XLA_FLAGS="$(UNOPTIMISED)" $(PYTEST) tests -m "not nightly" $(TEST_WORKERS)
	MULTIPPO_BACKEND=jax $(PYTEST) multippo
	MULTIPPO_BACKEND=torch $(PYTEST) multippo

test-conformance: $(DEV) ## conformance on every engine in float32 (the NumPy engine's float64), without random networks
	XLA_FLAGS="$(UNOPTIMISED)" $(PYTEST) conformance $(ENGINES) --quick $(TEST_WORKERS) --dist loadgroup

test-nightly: $(DEV) ## long tests, all of conformance, 500 random networks (PART=1..5, NETWORKS=500, NETWORKS_SEED=0)
	XLA_FLAGS="$(UNOPTIMISED)" $(PYTEST) tests -m nightly $(SPLIT) $(TEST_WORKERS)
	$(PYTEST) conformance $(ENGINES) --networks 0 $(SPLIT) $(TEST_WORKERS) --dist loadgroup
	XLA_FLAGS="$(UNOPTIMISED)" $(PYTEST) conformance -k random_network $(ENGINES) \
		--networks $(NETWORKS) --networks-seed $(NETWORKS_SEED) $(TEST_WORKERS) --dist loadgroup

test-lowest: ## conformance on JAX with the oldest versions declared, in .venv-lowest
	$(MAKE) VENV=$(LOWEST) $(LOWEST)/bin/pip
	$(LOWEST)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints-lowest.txt \
		--editable ".[brax,conformance]" pytest pytest-xdist
	@# Old releases warn of one another, which is no news.
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest conformance --backend jax -W default $(TEST_WORKERS) --dist loadgroup

check-wheel: $(BIN)/pip ## wheel, sdist, and each extra alone in an empty environment (EXTRAS="torch render", CONSTRAINTS=FILE)
	PYTHON=$(abspath $(BIN)/python) EXTRAS="$(EXTRAS)" CONSTRAINTS=$(CONSTRAINTS) TORCH_INDEX=$(TORCH_INDEX) \
		.ci/check_wheel

check: lint test ## everything a change must pass

lint: $(DEV) ## ruff, ruff format --check, pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(DEV) ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS) ## the documentation site, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(BENCH) ## speed beside other libraries, which it installs (ARGS="--works cartpole-8 --rounds 1")
	$(BIN)/multippo bench $(ARGS)

learning: $(DEV) ## the learning benchmark behind benchmarks/RESULTS.md
	$(BIN)/python benchmarks/learning.py $(ARGS)

clean: ## remove caches and build output
	rm -rf build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find multippo conformance tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv as well
	rm -rf $(VENV) $(LOWEST)

$(RUN): pyproject.toml setup.py constraints.txt | $(BIN)/pip
	@echo "Installing torch (CPU build) ..."
	@$(PIP) install --quiet --no-compile -c constraints.txt torch 2>/dev/null \
	|| $(PIP) install --quiet --no-compile -c constraints.txt --extra-index-url $(TORCH_INDEX) torch \
	|| { echo "error: pip found no CPU build of torch, neither where it is configured to look nor at $(TORCH_INDEX)." >&2; \
	     echo "       Check the network, or name another index: make TORCH_INDEX=https://..." >&2; exit 1; }
	@echo "Installing multippo, its engines and environments ..."
	@$(PIP) install --quiet --no-compile -c constraints.txt --editable ".[all]"
	@touch $@

$(DEV): $(RUN)
	@echo "Installing the development tools ..."
	@$(PIP) install --quiet --no-compile -c constraints.txt --editable ".[all,dev]"
	@# Some packages ship files in a newer syntax than this Python's, so the result does not matter.
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@

$(DOCS): $(RUN)
	@echo "Installing what builds the documentation ..."
	@$(PIP) install --quiet --no-compile -c constraints.txt --editable ".[all,docs]"
	@touch $@

$(BENCH): $(RUN)
	@echo "Installing the libraries to compare with ..."
	@$(PIP) install --quiet --no-compile -c constraints.txt --editable ".[bench]"
	@touch $@

$(BIN)/pip:
	@for python in $(PYTHON); do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "Creating $(VENV) with $$("$$python" --version) ..."; \
	    exec "$$python" -m venv $(VENV); \
	  fi; \
	  incomplete="$$python"; \
	done; \
	if [ -n "$$incomplete" ]; then \
	  echo "error: $$incomplete cannot create virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; \
	else \
	  echo "error: Python 3.11 or later is needed; none found as: $(PYTHON)." >&2; \
	  echo "       Install it, or name it: make PYTHON=/path/to/python" >&2; \
	fi; \
	exit 1
