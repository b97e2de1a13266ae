# Everything needs only python3 (3.11 or newer) and make; the environment is made when it is first needed.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
UV_VENV := .uv
RUN := $(VENV)/bin/python
UV := $(shell command -v uv 2>/dev/null || echo $(UV_VENV)/bin/uv)
LOCKED := $(VENV)/.made-from-lock
STAMP := $(VENV)/.installed
PEERS := bench/.venv-peers
# In processes of their own: see tests/cuda/conftest.py.
GPU_TESTS = FLNL_SIMULATED_GPU=1 FLNL_DEMAND_GPU_TESTS=$(FLNL_DEMAND_GPU_TESTS) $(RUN) -m pytest -n 2 --dist worksteal tests/cuda
ARGS ?=
SCALE ?= small
TABLES ?=
METHODS ?= fedavg,fedprox,fedcorr,feddiv,flr,flr_plus,fedpeer,fedes
SETTINGS ?= digits_iid,digits_noniid,digits_dirichlet,digits_openset,mnist_iid,mnist_noniid,mnist_dirichlet,mnist_openset
OUT ?= docs/comparison.json
SKIP ?= chosen
ROOM ?=
COUNT ?= 20
SEED ?= 1
comma := ,
# One thread a process: two threads beside another busy process can be many times slower.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.PHONY: help env run reproduce-tables comparison card test test-all test-flower test-gpu docs bench bench-peers mutants check format wheel lock clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(STAMP) ## make the environment in .venv from requirements.lock, if it is not there yet

run: $(STAMP) ## train: make run ARGS="method=fedavg noise.rho=0.4"
	@$(RUN) -m flnl $(if $(ARGS),$(ARGS),method=fedcorr noise.rho=0.6)

reproduce-tables: $(STAMP) ## the papers' tables, ours beside theirs: make reproduce-tables SCALE=small TABLES="fedcorr_2"
	@$(RUN) -m flnl tables run $(TABLES) scale=$(SCALE) $(if $(ARGS),-- $(ARGS)); code=$$?; [ $$code -le 1 ] || exit $$code; \
	$(RUN) -m flnl tables render $(TABLES) scale=$(SCALE) && exit $$code

# The measure is that of the file, in which all choices are made by the same one.
comparison: $(STAMP) ## add what docs/comparison.json lacks: make comparison METHODS=fedavg,fedcorr SETTINGS=digits_iid,mnist_iid
	@$(RUN) -m flnl tune method=$(METHODS) experiment=comparison/$(subst $(comma),$(comma)comparison/,$(SETTINGS)) \
		train.lr=0.003,0.01,0.03,0.1 --each method --each experiment --measure last --margin 0.05 --report 1,2,3,4,5 \
		--out $(OUT) --add --skip $(SKIP) --markdown multirun/tune/comparison.md -- executor=stacked $(ARGS)

card: $(STAMP) ## show the federation without training: make card ARGS="partition=fedcorr"
	@$(RUN) -m flnl card $(ARGS)

test: $(STAMP) ## the tests, in about half an hour on two quiet cores
	@$(RUN) -m pytest -n 2 --dist worksteal --ignore tests/cuda -m "not slow"
	@$(GPU_TESTS) -m "not slow"

test-all: $(STAMP) ## every test, the slow ones too
	@$(RUN) -m pytest -n 2 --dist worksteal --ignore tests/cuda
	@$(GPU_TESTS)

test-flower: $(STAMP) ## the tests over Flower alone, in an environment that is made for them
	@[ -d .venv-flower ] || $(RUN) -m flnl federation install-flower
	@$(RUN) -m pytest tests/sites/test_over_flower.py

test-gpu: $(STAMP) ## the tests for a GPU alone, on the simulated one if there is none
	@$(GPU_TESTS)

docs: $(STAMP) ## build the site of the documents and the reference into docs/_build; a dead link or a page without a place fails
	@$(RUN) -m sphinx -E -b html -W --keep-going -q -c docs . docs/_build && echo docs/_build/README.html

bench: $(STAMP) ## how fast a round is: make bench ARGS="--workloads mlp --ways hand,sequential", or --quick
	@$(RUN) -m bench $(ARGS)

bench-peers: $(PEERS)/.made-from-lock ## make the environment of the frameworks that bench compares with

mutants: $(STAMP) ## small mistakes in a room's code that no test notices: make mutants ROOM=evaluation COUNT=20 SEED=1
	@$(RUN) -m bench.mutants $(ROOM) --count $(COUNT) --seed $(SEED)

check: $(STAMP) ## formatting, lint and types
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy

format: $(STAMP) ## put the code in form
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

wheel: $(STAMP) ## build the wheel that carries the package and its configuration into dist/
	@$(RUN) -m hatchling build -t wheel

lock: $(UV) ## resolve requirements.lock anew from pyproject.toml
	@printf 'torch==2.13.0\ntorchvision==0.28.0\n' > $(UV_VENV)-constraints
	@$(UV) pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
		--extra dev --constraint $(UV_VENV)-constraints --quiet pyproject.toml -o requirements.lock
	@rm -f $(UV_VENV)-constraints
	@$(UV) pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
		--quiet bench/peers/requirements.in -o bench/peers/requirements.txt
	@$(UV) pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
		--quiet src/flnl/sites/flower/requirements.in -o src/flnl/sites/flower/requirements.txt

clean: ## remove the environment and the caches; outputs stay
	rm -rf $(VENV) $(UV_VENV) $(PEERS) dist docs/_build .mypy_cache .ruff_cache .pytest_cache

$(UV_VENV)/bin/uv:
	@$(PYTHON) -m venv $(UV_VENV)
	@$(UV_VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv

$(LOCKED): requirements.lock | $(UV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "python 3.11 or newer is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making the environment in $(VENV) (some 7 GB, once)" >&2
	@rm -rf $(VENV)
	@$(UV) venv --quiet --python $(PYTHON) $(VENV)
	@$(UV) pip install --quiet --python $(RUN) --require-hashes --compile-bytecode -r requirements.lock
	@touch $@

$(STAMP): $(LOCKED) pyproject.toml | $(UV)
	@$(UV) pip install --quiet --python $(RUN) --no-deps --no-build-isolation --editable .
	@touch $@

# Where the lock cannot be installed as a whole, each framework is tried on its own, at the lock's versions.
$(PEERS)/.made-from-lock: bench/peers/requirements.txt | $(UV)
	@echo "making the environment of other frameworks in $(PEERS) (some 7 GB, once)" >&2
	@rm -rf $(PEERS)
	@$(UV) venv --quiet --python $(PYTHON) $(PEERS)
	@if $(UV) pip install --quiet --python $(PEERS)/bin/python --require-hashes --compile-bytecode -r $<; then touch $@; \
	else while read -r one; do \
		grep -v -- '--hash' $< | sed 's/ *\\$$//' > $(PEERS)/constraints.txt; \
		$(UV) pip install --quiet --python $(PEERS)/bin/python -c $(PEERS)/constraints.txt "$$one" \
			|| echo "$$one could not be installed" >&2; \
	done < bench/peers/requirements.in; fi
