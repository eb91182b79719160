# Every target makes its own environment in .venv: nothing but Python 3.11 and pip is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types bench clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), 'Python 3.11 or later is needed'"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/msign run synthetic --size 32 --budget 100000 --out demo --overwrite
	@echo "figures: demo/figures/marginal.png demo/figures/samples.png demo/figures/learning_curve.png"

lint: $(STAMP)
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench

types: $(STAMP)
	$(BIN)/mypy

test: lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal

bench: $(STAMP)
	$(BIN)/python bench/prior.py
	$(BIN)/python bench/glow.py
	$(BIN)/python bench/fem.py
	$(BIN)/python bench/inference.py
	$(BIN)/python bench/images.py memory

clean:
	rm -rf $(VENV) demo
