# Everything lives in the checkout: `make setup` needs python3 (3.11 or newer) and nothing else.
PYTHON ?= python3
UV_VERSION := 0.13.9
VENV := .venv
LOCK := requirements.lock
SITE_VENV := .venv-docs
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
UV := $(BIN)/uv
WORKERS ?= 3

# Without compiled files each process that tests start compiles all that it imports, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE

APPS ?= tests/adk/oracle/apps

.PHONY: setup demo test test-long coverage docs site test-313 test-genai3 test-adk1 image apps attacks retest prove check lint types \
	fast-tests genai-tests adk-tests format lock clean

setup: $(STAMP)

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Perdure needs Python 3.11 or newer; name one by: make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"

# A lock names exact versions with their hashes and no registry: uv's own settings decide where packages come from.
$(STAMP): pyproject.toml $(LOCK) Makefile | $(UV)
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r $(LOCK)
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# An agent tree that waits, is answered, loses its worker and goes on; no API key needed.
demo: $(STAMP)
	$(BIN)/python -m examples.demo

# The tests, but for some long ones. Three processes share them, by files, each with Temporal servers of its own, since they wait as much as they
# compute; WORKERS=0 is one.
test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not long" $(PYTEST)

# The same with the branch coverage of perdure/; the least that passes stands in pyproject.toml.
coverage: PYTEST = --cov --cov-report=term
coverage: test

# More cases of what `make test` shows, and most benchmarks: tests/long_tests.py has the list.
test-long: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist load -m long $(PYTEST)

# The site, and every block of every page, run as it is printed (`make test` does the latter, too).
docs: site
	$(BIN)/python -m pytest -q tests/docs

# The site alone, in the folder `site`, made by tools in an environment of their own.
site: $(SITE_VENV)/.setup-done
	NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/mkdocs build --strict

$(SITE_VENV)/.setup-done: tests/docs.lock | $(STAMP)
	$(UV) venv --quiet --clear --python $(BIN)/python $(SITE_VENV)
	$(UV) pip install --quiet --python $(SITE_VENV)/bin/python --require-hashes -r tests/docs.lock
	@touch $@

# A Python 3.13, which is the image's: $$python, where one is found, for the rest of the recipe.
FIND_313 = for python in $(PYTHON_313) python3.13 "$$HOME"/.pyenv/versions/3.13*/bin/python \
		"$$($(UV) python find --managed-python 3.13 2>/dev/null || \
			{ $(UV) python install --quiet 3.13 && $(UV) python find --managed-python 3.13; } 2>/dev/null)"; do \
		"$$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null && break; \
		python=; \
	done

# What must hold on the image's Python, too, where one is found: the attacks, and the tests that need no server.
test-313: | $(UV)
	@$(FIND_313); \
	if [ -n "$$python" ]; then exec $(MAKE) --no-print-directory VENV=.venv-313 PYTHON="$$python" fast-tests attacks; fi; \
	echo "perdure: no Python 3.13 is here, so nothing was tested with it; make test-313 PYTHON_313=/path/to/python" >&2

# The image: each step of the Dockerfile in a fresh root, and its worker and API serve. Needs root and debootstrap.
image: $(STAMP)
	@$(FIND_313); \
	if [ -n "$$python" ] && [ "$$(id -u)" = 0 ] && command -v debootstrap >/dev/null; then \
		exec $(BIN)/python -m tests.image "$$python"; \
	fi; \
	echo "perdure: the image was not built: that needs root, debootstrap and a Python 3.13 (PYTHON_313=/path/to/python)" >&2

# The other ends of what pyproject.toml allows, each with what touches it, in an environment of its own.
test-genai3: | $(UV)
	@$(MAKE) --no-print-directory VENV=.venv-genai3 LOCK=tests/genai3.lock genai-tests

test-adk1: $(STAMP)
	@$(MAKE) --no-print-directory VENV=.venv-adk1 LOCK=tests/adk1.lock adk-tests

genai-tests: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not server and not process" tests/models tests/steps \
		tests/journal/test_events.py tests/journal/test_live_events.py tests/compiler/test_loading.py \
		tests/test_architecture.py

adk-tests: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile tests/adk tests/programs --ignore tests/programs/page

# The apps of a folder as ADK ran them; more options in OPTIONS: --kill model:1, --all, or names of apps.
apps: $(STAMP)
	$(BIN)/python -m tests.adk.oracle --folder $(APPS) $(OPTIONS)

attacks: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile tests/attacks tests/api/test_attacks.py

# The tests that failed, alone: what passes now was late on a busy machine, and is told.
retest: $(STAMP)
	$(BIN)/python -m tests.retest

# Every scenario, run in both ways and proved in all four, by one step an activity and by several; many random agent
# trees, many rounds of looks: hours.
prove: $(STAMP)
	@for steps in 1 2 3 20; do for mode in live re-enter replay continue-as-new prefix kill; do \
		$(BIN)/python -m tests.conformance --mode $$mode --steps $$steps \
			tests/conformance/scenarios tests/conformance/extra tests/conformance/more || exit 1; \
	done; done
	PERDURE_PROVE=long $(BIN)/python -m pytest -q --timeout 3600 tests/prove/test_random_trees.py \
		tests/prove/test_random_custom_agents.py tests/attacks/test_looks.py

# The fast loop: format, lint, types, and the tests that need no server and are quick.
check: lint
	@$(MAKE) --no-print-directory -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) types fast-tests

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/pyright

fast-tests: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not server and not process"

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

RESOLVE = $(UV) pip compile pyproject.toml --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header --upgrade --quiet

lock: | $(UV)
	$(RESOLVE) --all-extras --group dev --output-file requirements.lock
	$(RESOLVE) --extra api --extra dev-server --extra encryption --extra telemetry --group genai3 \
		--output-file tests/genai3.lock
	$(RESOLVE) --extra adk --extra api --extra dev-server --group adk1 --output-file tests/adk1.lock
	$(subst pyproject.toml,,$(RESOLVE)) --group docs --output-file tests/docs.lock

clean:
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .hypothesis .coverage* .perdure site
