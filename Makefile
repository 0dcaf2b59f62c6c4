# Each target makes the environment first if it is missing or older than what it is made from.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test slow fuzz long lint env clean

demo: $(STAMP)
	$(BIN)/python examples/embed_sentences.py

test: lint
	$(BIN)/python -m pytest -q

slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow $(ARGS)

FUZZ_SECONDS ?= 600
fuzz: $(STAMP)
	$(BIN)/python -m pytest -q -m long tests/fuzz -p no:cacheprovider
	$(BIN)/python -m scripts.fuzz_records --seconds $(FUZZ_SECONDS)

long: $(STAMP)
	$(BIN)/python -m pytest -q -m long $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

env: $(STAMP)

# torch goes first, alone: its CPU build is then taken where one is offered, and nothing replaces it afterwards.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install -q -e '.[dev,demo,report]' -c constraints.txt
	touch $@

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
