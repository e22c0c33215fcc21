# The two commands of the README, `make demo` and `make test`, set up all they need.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test lint bench results docs slow hosts clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

demo: install
	$(BIN)/python examples/demo.py

# Two processes with one thread each: half the time of one process with two.
test: lint
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: install
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/offline.py
	$(BIN)/python benchmarks/models.py
	$(BIN)/python benchmarks/embeddings.py
	$(BIN)/python benchmarks/online.py
	$(BIN)/python benchmarks/topk.py
	$(BIN)/python benchmarks/serve.py

# Update the tables in RESULTS.md from results/.
results: install
	$(BIN)/python -c 'from pathlib import Path; from reproduce.results_page import filled; \
		page = Path("RESULTS.md"); page.write_text(filled(page.read_text(), "results"))'

# The guides and the API reference as a site: site/index.html.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# More examples of what must always hold, and what takes longer than a test should.
slow: install
	HYPOTHESIS_PROFILE=thorough OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 \
		$(BIN)/python -m pytest -n 2 --dist worksteal
	$(BIN)/python -m pytest -m slow

hosts: .venv-hosts/installed
	.venv-hosts/bin/python -m pytest -m hosts tests/hosts

# Other people's models, in an environment of their own. TorchRec is taken without what it asks
# for: that is the build of its kernels for GPUs, and fbgemm-gpu-cpu is the one for CPUs.
.venv-hosts/installed: pyproject.toml constraints.txt constraints-hosts.txt
	$(PYTHON) -m venv .venv-hosts
	.venv-hosts/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	.venv-hosts/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0
	.venv-hosts/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -c constraints-hosts.txt deepctr-torch fuxictr lightning \
		iopath pyre-extensions tensordict torchmetrics tqdm
	@touch $@

clean:
	rm -rf .venv .venv-hosts site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
