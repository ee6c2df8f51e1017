# Needs Python 3.11 to 3.14 and make; everything else goes into .venv.
#
#   PIP_ARGS     options for every pip call. The small CPU build of torch on Linux:
#                make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#   PYTHON       a Python that is not on the path, to make .venv with
#   PYTEST_ARGS  options for pytest, e.g. make test PYTEST_ARGS="-k entmax"

PIP_ARGS ?=
PYTHON ?=
PYTEST_ARGS ?=

BIN := .venv/bin
INSTALL := -m pip --disable-pip-version-check install -q -c requirements.lock $(PIP_ARGS)
PIP := $(BIN)/python $(INSTALL)
# Two processes, each with whole files, whose runs are trained once; in the order of the files, so that
# both end with the short ones of tests/unit. Bytecode is written, since tests start hundreds of processes.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile \
  --no-loadscope-reorder
SOURCES := src tests benchmarks scripts docs/generate.py docs/live/hook.py train.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-triton docs peers browser slurm lint format clean
.DELETE_ON_ERROR:

help: ## this list
	@echo "usage: make TARGET [PIP_ARGS=...] [PYTHON=...] [PYTEST_ARGS=...]"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile

demo: .venv/.installed ## train, score and picture alpha-entmax on the built-in corpus, in minutes
	@$(BIN)/python train.py experiment=demo

test: lint .venv/.installed-test ## lint, then the tests of every promise: minutes
	@$(PYTEST) -m "not slow and not triton" $(PYTEST_ARGS)

test-all: lint .venv/.installed-docs .venv/.installed-pretrained ## lint and all tests: also browser, guide, reports, launchers, compiled training, GPU kernels
	@$(PYTEST) -m "not triton" $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-triton

# Single tests to a worker: few files have all the work.
test-triton: .venv/.installed-triton ## the GPU kernels in Triton's interpreter (installs Triton, 700 MB)
	@TRITON_INTERPRET=1 $(PYTEST) --dist load -m triton $(PYTEST_ARGS)

docs: .venv/.installed-docs ## the guide as a site that needs no network: site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "the guide is in site/index.html"

peers: .venv-peers/.installed ## training and search beside those of other toolkits (half an hour)
	@.venv-peers/bin/python -m benchmarks.peers --threads 1
	@.venv-peers/bin/python -m benchmarks.peers --threads 2

# Never fails: without a browser its tests are skipped, with this target named as the reason.
browser: ## Chromium for the tests of the page of heads, with apt-get as root; else says what to do
	@for name in chromium chromium-browser google-chrome; do \
	  if command -v $$name >/dev/null; then echo "the page is tested in $$name"; exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium; } \
	  || echo "Chromium could not be installed: the page is not tested in a browser"; \
	else \
	  echo "install Chromium or Chrome to test the page in a browser (Debian: apt-get install chromium)"; \
	fi

# Never fails, as `browser`.
slurm: ## Slurm for the test of its launcher, with apt-get as root; else says what to do
	@if command -v slurmctld >/dev/null; then echo "the launcher of Slurm is tested"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge; } \
	  || echo "Slurm could not be installed: its launcher is not tested"; \
	else \
	  echo "install Slurm to test its launcher (Debian: apt-get install slurmctld slurmd slurm-client munge)"; \
	fi

lint: .venv/.installed-test ## ruff and mypy, changing nothing
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/mypy

format: .venv/.installed-test ## ruff, mending what it can
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

clean: ## remove .venv, caches and builds; runs in outputs/ stay
	rm -rf .venv .venv-peers build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps, so that a second call installs nothing. A stamp is written only after what it stands
# for; an interrupted installation is taken up again.
PYTHONS := $(strip $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3)
.venv/.created:
	@for candidate in $(PYTHONS); do \
	  if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then \
	    echo "making .venv with $$("$$candidate" --version) ($$candidate)"; \
	    "$$candidate" -m venv .venv && touch $@; exit; \
	  fi; \
	done; \
	echo "Python 3.11, 3.12, 3.13 or 3.14 is needed and none of $(PYTHONS) is one;" \
	  "install it, or: make TARGET PYTHON=/path/to/python3.11" >&2; \
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

.venv/.installed-docs: .venv/.installed
	@echo "installing mkdocs, for the guide"
	@$(PIP) -e ".[docs]"
	@touch $@

# A pretrained BERT (MIT, 75 MB) without the old packages it asks for. Never fails: its test says why it is skipped.
.venv/.installed-pretrained: .venv/.installed-test
	@echo "installing a small pretrained model, for a test"
	@$(PIP) --no-deps rxnfp==0.1.0 && touch $@ || echo "rxnfp could not be installed: its test is skipped"

.venv/.installed-triton: .venv/.installed-test
	@echo "installing Triton, for the interpreter of its kernels"
	@$(PIP) -e ".[triton]"
	@touch $@

# The other toolkits (with Python 3.11 alone), with .venv's packages below them, so that torch is there once. fairseq has no
# wheel for Python 3.11 and does not build there; of an older one the Python is used.
PEERS := .venv-peers/lib/python3.11/site-packages
.venv-peers/.installed: benchmarks/peers.txt .venv/.installed
	@echo "installing the toolkits to compare with"
	@$(BIN)/python -m venv .venv-peers
	@echo "import site; site.addsitedir('$(CURDIR)/.venv/lib/python3.11/site-packages')" > $(PEERS)/headwise.pth
	@.venv-peers/bin/python $(INSTALL) -r benchmarks/peers.txt
	@.venv-peers/bin/python $(INSTALL) --no-deps joeynmt==2.3.0 OpenNMT-py==3.5.1
	@.venv-peers/bin/python $(INSTALL) --no-deps --only-binary=:all: --target $(PEERS) \
	  --python-version 3.8 --platform manylinux1_x86_64 fairseq==0.12.2
	@touch $@
