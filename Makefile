# The two commands of the README, `make demo` and `make test`, set up all they need.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test lint bench slow clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

demo: install
	$(BIN)/python examples/demo.py

test: lint
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/offline.py

slow: install
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
