# `make` shows the targets. Each sets up .venv first, once; later calls reuse it until what it is made from changes.
PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help ablate ladder bench figures test test-all test-oldest quick lint clean

help:
	@echo "make ablate   train one rung, bf16, and measure it   (ARGS=\"--max_steps 60\" adds flags)"
	@echo "make ladder   climb all rungs and compare them       (ARGS=\"--repeats 3\" adds flags)"
	@echo "make bench    the loop beside a bare one and Trainer  (ARGS=\"--rounds 12\" adds flags)"
	@echo "make figures  take every figure of the guides again (ARGS=\"--only default\" takes some)"
	@echo "make test     run the tests                          (ARGS=\"-k memory\" adds pytest arguments)"
	@echo "make test-all the tests with every case of those of which others run a sample"
	@echo "make test-oldest  the tests with the oldest releases that pyproject.toml admits, in an environment of their own"
	@echo "make quick    check format and style, and run the tests that take no time, within 90 seconds"
	@echo "make lint     check format and style"
	@echo "make clean    remove the virtual environment and the runs"

$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit("Python %d.%d is too old: 3.10 or newer is needed; name one with make PYTHON=python3.12" % v[:2])'
	@echo "Setting up $(VENV) (some minutes, once)"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e ".[dev]"
	@touch $(READY)

ablate: $(READY)
	@$(BIN)/accelerate launch recipes/ablate.py --config accelerate_configs/bf16.yaml $(ARGS)

ladder: $(READY)
	@$(BIN)/python recipes/ladder.py $(ARGS)

bench: $(READY)
	@$(BIN)/python recipes/bench.py $(ARGS)

figures: $(READY)
	@$(BIN)/python recipes/figures.py $(ARGS)

test: $(READY)
	@$(PYTEST) $(ARGS)

test-all: $(READY)
	@$(PYTEST) --all $(ARGS)

test-oldest:
	@$(MAKE) --no-print-directory test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

quick: lint
	@$(PYTEST) --quick $(ARGS)

lint: $(READY)
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

clean:
	rm -rf $(VENV) .venv-oldest runs
