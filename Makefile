# Needs Python 3.11 and make; everything else goes into .venv.
#
#   PIP_ARGS     options for every pip call. The small CPU build of torch on Linux:
#                make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#   PYTHON       a Python 3.11 that is not on the path, to make .venv with
#   PYTEST_ARGS  options for pytest, e.g. make test PYTEST_ARGS="-m 'not slow'"

PIP_ARGS ?=
PYTHON ?=
PYTEST_ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c requirements.lock $(PIP_ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-triton lint format clean
.DELETE_ON_ERROR:

help: ## this list
	@echo "usage: make TARGET [PIP_ARGS=...] [PYTHON=...] [PYTEST_ARGS=...]"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile

demo: .venv/.installed ## train, score and picture alpha-entmax on the built-in corpus, in minutes
	@$(BIN)/python train.py experiment=demo

test: lint ## lint, then the whole test suite
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

# Two workers, and Triton is told before it is imported that there is no GPU.
test-triton: .venv/.installed-triton ## the GPU kernels in Triton's interpreter (installs Triton, 700 MB)
	@TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m triton $(PYTEST_ARGS)

lint: .venv/.installed-test ## ruff and mypy, changing nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: .venv/.installed-test ## ruff, mending what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove .venv, caches and builds; runs in outputs/ stay
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps, so that a second call installs nothing. A stamp is written only after what it stands
# for; an interrupted installation is taken up again.
.venv/.created:
	@for candidate in $(PYTHON) python3.11 python3; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then \
	    echo "making .venv with $$candidate"; \
	    "$$candidate" -m venv .venv && touch $@; exit; \
	  fi; \
	done; \
	echo "Python 3.11 is needed (requirements.lock is made for it) and none of" \
	  "$(strip $(PYTHON) python3.11 python3) is one; install it, or: make TARGET PYTHON=/path/to/python3.11" >&2; \
	exit 1

# torch first and by its exact version: the one big download, before anything else can fail.
.venv/.installed: pyproject.toml requirements.lock | .venv/.created
	@echo "installing the pinned dependencies (torch is the big one; minutes on a slow line)"
	@$(PIP) torch==2.13.0
	@$(PIP) -e .
	@touch $@

.venv/.installed-test: .venv/.installed
	@echo "installing the test and lint extras"
	@$(PIP) -e ".[test,lint]"
	@touch $@

.venv/.installed-triton: .venv/.installed-test
	@echo "installing Triton, for the interpreter of its kernels"
	@$(PIP) -e ".[triton]"
	@touch $@
