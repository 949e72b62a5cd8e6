# Everything is set up from nothing in .venv; only Python >= 3.11 is needed.
#   make demo        the main job on real input from this machine
#   make test        the tests; make test T=tests/unit/test_policy.py those of a file, which needs few packages
#   make test-integrations   each framework's tests, at its current release, in an environment of its own
#   make test-scale  work on whole stores, by the workers of Dask and Ray on this machine; 1,000 sessions of a gateway
#   make test-clouds the stores of Google and Azure, on servers of their kind on this machine
#   make test-peers  public suites of other projects, run against the implementations of their protocols here
#   make mutation    how many small faults the tests find, on a sample of mutants of the core modules (about two hours)
#   make lint        format, lint, types, layers
#   make models    windows and prices of models, from the newest release of genai-prices; make stale names what is old
#   make docs        the documentation, into build/site; fails on a warning
#   make bench       all benchmarks (bench-quick: the short ones)
#   make bench-loca  tasks of LOCA-bench, whose generators are fetched, with other libraries

PYTHON ?= python3
BIN := .venv/bin
comma := ,
# Where bytecode may not be written, each of the many processes of the tests would compile every module anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: models stale demo test test-all test-integrations test-scale test-clouds test-peers mutation lint docs bench bench-quick bench-loca clean

demo: .venv/.demo
	@$(BIN)/offload demo

# Files of the tests are in memory if it has 2 GB for them and lets programs run; `make test-all` keeps them on the disk.
IN_MEMORY := $(shell grep -qs ' /dev/shm tmpfs [^ ]*noexec' /proc/mounts || \
	df -Pk /dev/shm 2>/dev/null | awk 'NR > 1 && $$4 > 2000000 {print "PYTEST_DEBUG_TEMPROOT=/dev/shm"}')

# Tests of frameworks run by `make test-integrations`, also those whose framework happens to be here.
test: $(if $(T),.venv/.unit,.venv/.compiled)
	$(IN_MEMORY) $(BIN)/python -m pytest -q $(or $(T),-n auto --dist worksteal --ignore tests/frameworks --ignore tests/docs/test_framework_pages.py)

# Whatever takes longer than a few minutes is marked `slow`.
test-all: .venv/.compiled
	$(BIN)/python -m pytest -n auto --dist worksteal -q -m "slow or not slow"
	$(MAKE) test-clouds docs

# A framework's name is that of its dependency group `integration-NAME` and of tests/frameworks/test_NAME*.py.
FRAMEWORKS := $(filter-out clouds coding-clients,$(shell sed -n 's/^integration-\([a-z-]*\) = .*/\1/p' pyproject.toml))

test-integrations: $(addprefix test-integration-,$(FRAMEWORKS)) test-clouds

test-integration-%: .venv-frameworks/%/.made
	$(<D)/bin/python -m pytest -q tests/frameworks/test_$(subst -,_,$*)*.py tests/docs/test_framework_pages.py tests/docs/test_examples.py

.venv-frameworks/%/.made: .venv/.made pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(BIN)/uv pip install --quiet --python $(@D)/bin/python -e . --group integration-$* || \
		{ $(@D)/bin/python -m pip install --quiet --upgrade "pip>=25.1" && $(@D)/bin/python -m pip install --quiet -e . --group integration-$*; }
	if test -x $(BIN)/uv && grep -q '"$*"' tests/frameworks/releases.py; then $(@D)/bin/python tests/frameworks/releases.py $*; fi
	@touch $@

CLIENTS := @openai/codex opencode-ai @google/gemini-cli @earendil-works/pi-coding-agent @github/copilot cline @aaif/goose-acp @qwen-code/qwen-code@latest
VERCEL := ai@latest @ai-sdk/openai @ai-sdk/anthropic @ai-sdk/google zod

# Coding clients are programs of Node: without npm their tests are skipped.
test-integration-coding-clients: .venv-frameworks/coding-clients/.npm
	.venv-frameworks/coding-clients/bin/python -m pytest -q tests/frameworks/test_coding_clients.py

.venv-frameworks/coding-clients/.npm: .venv-frameworks/coding-clients/.made
	if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --prefix $(@D) $(CLIENTS) && \
		npm install --silent --no-audit --no-fund --prefix $(@D)/vercel $(VERCEL); fi
	@touch $@

test-scale: test-integration-catalog test-integration-dask test-integration-ray .venv/.dev
	$(BIN)/python -m pytest -q -m slow tests/integration/test_gateway_sessions.py

# Azure's emulator is a program of Node: without npm its tests are skipped.
test-clouds: .venv-frameworks/clouds/.azurite
	.venv-frameworks/clouds/bin/python -m pytest -q -m "slow or not slow" tests/buckets tests/docs/test_framework_pages.py

.venv-frameworks/clouds/.azurite: .venv-frameworks/clouds/.made
	if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --prefix $(@D) azurite@3.37; fi
	@touch $@

.PRECIOUS: .venv-frameworks/%/.made

# Their environments; tests/peers/run.py fetches the suites.
test-peers: $(patsubst %,.venv-frameworks/%/.made,anthropic deepagents google-adk langchain strands)
	$(BIN)/python tests/peers/run.py

# `make mutation MODULES="reading/tables engine/log.py"` tries these alone.
mutation: .venv/.mutation
	$(IN_MEMORY) $(BIN)/python benchmarks/mutation.py $(MODULES)

lint: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

models: .venv/.demo
	$(call INSTALL,--group models)
	$(BIN)/python benchmarks/models.py

stale: .venv/.demo
	$(BIN)/offload models --older-than $(or $(DAYS),60)

docs: .venv-docs/.made
	.venv-docs/bin/zensical build --strict --clean

.venv-docs/.made: .venv/.made pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(BIN)/uv pip install --quiet --python $(@D)/bin/python --group docs || \
		{ $(@D)/bin/python -m pip install --quiet --upgrade "pip>=25.1" && $(@D)/bin/python -m pip install --quiet --group docs; }
	@touch $@

bench: .venv/.bench
	$(BIN)/python benchmarks/run.py

bench-quick: .venv/.dev
	$(BIN)/python benchmarks/run.py --quick

bench-loca: .venv/.bench
	$(BIN)/python benchmarks/bench_loca.py

clean:
	rm -rf .venv .venv-docs .venv-frameworks .cache build dist

# pip walks back through years of boto3 to find one that s3fs and moto agree on; uv needs seconds.
# Where uv cannot be had or finds no index, pip does it in minutes.
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python $(1) || $(BIN)/python -m pip install --quiet $(1)

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "offload needs Python >= 3.11, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1" uv || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@touch $@

.venv/.demo: .venv/.made pyproject.toml
	$(call INSTALL,-e ".[cli]")
	@touch $@

.venv/.unit: .venv/.made pyproject.toml
	test -e .venv/.dev || { $(call INSTALL,-e ".[s3$(comma)cli$(comma)testing]" --group unit); }
	@touch $@

.venv/.dev: .venv/.made pyproject.toml
	$(call INSTALL,-e ".[s3$(comma)cli$(comma)testing]" --group dev)
	@touch $@ .venv/.demo

# Two processes compile half of the tests each; otherwise every worker would compile all of them.
.venv/.compiled: .venv/.dev
	$(BIN)/python -m pytest -qq --collect-only tests/unit >/dev/null & \
		$(BIN)/python -m pytest -qq --collect-only --ignore tests/unit --ignore tests/frameworks tests >/dev/null; wait
	@touch $@

.venv/.mutation: .venv/.dev
	$(call INSTALL,-e ".[s3$(comma)cli]" --group mutation)
	@touch $@

.venv/.bench: .venv/.dev
	$(call INSTALL,-e ".[s3$(comma)cli]" --group bench)
	@touch $@
