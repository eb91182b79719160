# Every target makes its own environment in .venv: nothing but Python 3.11 and pip is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo docs figures test test-processors test-seeds lint types bench bench-time clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), 'Python 3.11 or later is needed'"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/msign run synthetic --size 32 --budget 100000 --out demo --overwrite
	@echo "open $(CURDIR)/demo/report.html"

# The documentation, to read from disk: site/index.html.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open $(CURDIR)/site/index.html"

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

# The pictures of the documentation and of the README, made again: about half an hour.
figures: $(STAMP)
	$(BIN)/python docs/make_figures.py

CODE := src tests bench examples docs

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(STAMP)
	$(BIN)/mypy

PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

test: lint types
	$(PYTEST)

# The tests as other processors run them: vector instructions as they are, of AVX2, of SSE 4.2.
test-processors: $(STAMP)
	$(PYTEST)
	XLA_FLAGS=--xla_cpu_max_isa=AVX2 $(PYTEST)
	XLA_FLAGS=--xla_cpu_max_isa=SSE4_2 $(PYTEST)

# The tests with other random numbers than their usual ones.
test-seeds: $(STAMP)
	MSIGN_TEST_SEED=1 $(PYTEST)
	MSIGN_TEST_SEED=2 $(PYTEST)

bench: $(STAMP)
	$(BIN)/python bench/prior.py
	$(BIN)/python bench/glow.py
	$(BIN)/python bench/fem.py
	$(BIN)/python bench/inference.py
	$(BIN)/python bench/images.py memory

# Where the seconds of a fit go, three seeds of everything.
bench-time: $(STAMP)
	$(BIN)/python bench/time.py --seeds 0 1 2

clean:
	rm -rf $(VENV) demo site
