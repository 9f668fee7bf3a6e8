# make demo: a first result on a machine that has only python3 and make; make web: the viewer in a browser; make test:
# the whole suite.
PYTHON ?= python3
# the tests of `make test`: CI says `slow or not slow`, which is all of them at once
TIER ?= not slow
VENV := .venv
BIN := $(VENV)/bin
# twice as many workers of pytest as cores: many tests wait for a process, a server or a browser
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell $(PYTHON) -c 'import os; print(2 * (os.cpu_count() or 1))')
# compiled modules are kept, whatever the caller's setting: each worker and process of the tests reads them again
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo web test slow smoke check prove bench docs site catalogue clean

demo: $(VENV)/installed
	$(BIN)/llmviewer analyze llama-2-7b --hardware a6000 --batch-size 1 --input-len 2048

# the web viewer on this machine; Ctrl-C ends it
web: $(VENV)/viewer
	$(BIN)/llmviewer serve

test: $(VENV)/developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -m '$(TIER)'

# the tests that take longest
slow: $(VENV)/developed
	$(BIN)/pytest -m slow

# feature once, on a small model and one chip: the inner loop
smoke: $(VENV)/developed
	$(BIN)/pytest -n 2 --dist worksteal tests/test_smoke.py tests/test_layering.py tests/test_size.py

# the tests of what differs from a commit, with ruff: a change of one room, under 90 seconds
SINCE ?= HEAD
check: $(VENV)/developed
	$(BIN)/ruff check .
	$(BIN)/pytest -n 2 --dist worksteal $$($(BIN)/python -m tests.affected $(SINCE))

# wrong formulas, planted one by one into a copy: the suite must turn red for each; writes docs/evidence/proof.md
prove: $(VENV)/developed
	$(BIN)/python -m tests.prove

bench: $(VENV)/installed
	$(BIN)/python benchmarks/speed.py

docs: $(VENV)/developed
	$(BIN)/python -m tests.certificate.table > docs/evidence/certificate.md
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/python_api.py
	$(BIN)/python docs/kernels.py
	$(BIN)/python docs/measured.py
	$(BIN)/python docs/ledger.py
	$(BIN)/python docs/where_wrong.py
	$(BIN)/python docs/coverage.py
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/web_picture.py
	$(BIN)/python docs/tour.py

# the documentation as a site with a search, in build/site, with the pages of the catalogue; no network
site: $(VENV)/developed build/models/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "build/site/index.html; with its search: $(BIN)/python -m http.server -d build/site"

# pages that answer without a server, 50 models x 20 chips, anew where the package has changed: minutes
catalogue: build/models/index.html

build/models/index.html: docs/catalogue.py $(shell find llmviewer reports hardware_specs model_configs -type f \
		-not -path '*__pycache__*') | $(VENV)/installed
	$(BIN)/python docs/catalogue.py build/models

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	$(BIN)/python -m compileall -q llmviewer reports calibrate  # an editable install leaves that to the first run
	touch $@

$(VENV)/viewer: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[web]'
	touch $@

# torch first and pinned: whatever else depends on it then takes this one, and no GPU packages arrive
$(VENV)/developed: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@
