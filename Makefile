# The commands of this repository. `make` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# In `make test` the quick layers come first and stop the run where they fail.
QUICK := tests/unit tests/golden tests/replay
PLANES := tests/cluster tests/reliability tests/walk tests/security
ENGINES := tests/engine tests/e2e
SHARED := -n auto --maxprocesses 4 --dist loadfile

.PHONY: help
help: ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: setup
setup: environment model kubernetes images ## Install what demo and test need (nothing to do the second time)

.PHONY: demo
demo: environment model ## Serve a real model on this machine, change its load and text, watch k follow
	@mkdir -p out
	$(BIN)/paceline local -f examples/local.yaml --report out/demo.json

.PHONY: demo-cluster
demo-cluster: environment model kubernetes images ## Kubernetes on this machine: images, the chart, a real engine in a pod, a load, k retuned
	$(BIN)/python -m hack.demo_cluster

.PHONY: test
test: setup ## All tests that need no GPU
	@mkdir -p out
	$(BIN)/pytest $(QUICK) $(SHARED) --junitxml=out/quick.xml
	$(BIN)/pytest $(PLANES) --junitxml=out/planes.xml --durations=15
	$(BIN)/pytest $(ENGINES) --junitxml=out/engines.xml --durations=15

.PHONY: test-long
test-long: setup ## The tests that measure for minutes
	$(BIN)/pytest -m long $(QUICK) $(SHARED)
	$(BIN)/pytest -m long $(PLANES) $(ENGINES)

.PHONY: unit
unit: environment ## The tests that start nothing
	$(BIN)/pytest $(QUICK) $(SHARED)

.PHONY: soak
soak: environment model kubernetes ## An hour and more: an engine and an operator under churn, 10,000 changes of a spec
	$(BIN)/python -m benchmarks.soak
	$(BIN)/python -m benchmarks.soak_operator
	PACELINE_WALK=10000 $(BIN)/pytest -m long tests/walk

.PHONY: lint
lint: environment ## Style, types and import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy hack/setup/*.py hack/kubernetes/*.py hack/*.py
	$(BIN)/mypy benchmarks/tuner/*.py benchmarks/scale/*.py benchmarks/*.py
	$(BIN)/lint-imports --no-logo

.PHONY: verify
verify: environment helm ## Fail where a generated file (CRDs, reference pages, bundle) is not what the code says, or a link is broken
	$(BIN)/python -m paceline_operator.api.crd --check
	$(BIN)/python -m hack.reference --check
	$(BIN)/python -m hack.chart --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

.PHONY: docs
docs: environment ## Build the documentation as a site, out/site/index.html; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

.PHONY: audit
audit: environment ## Known vulnerabilities of the pinned packages (asks PyPI's advisory data; not part of CI)
	@$(PYTHON) -m venv out/audit
	@out/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	out/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement hack/setup/constraints.txt

.PHONY: generate
generate: environment helm ## Write the generated files
	$(BIN)/python -m paceline_operator.api.crd --write
	$(BIN)/python -m hack.reference --write
	$(BIN)/python -m hack.chart --write

.PHONY: bundle
bundle: environment helm ## Write install.yaml, and the pages about the chart's values
	$(BIN)/python -m hack.chart --write

.PHONY: bench-tuner
bench-tuner: environment ## The tuner and its rivals over tables and grids: table, picture, page (SEEDS=3)
	$(BIN)/python -m benchmarks.tuner.compare --seeds $(or $(SEEDS),3)

.PHONY: bench-decide
bench-decide: environment ## CPU time of the tuner's decisions for a thousand servings
	$(BIN)/python -m benchmarks.decide

.PHONY: bench-scale
bench-scale: environment kubernetes ## One operator and N servings of three simulated engines each on a real API server (N=1000)
	$(BIN)/python -m benchmarks.scale $(or $(N),1000)

.PHONY: clean
clean: ## Remove what was built in this clone (the cache is shared between clones and stays)
	rm -rf .venv out dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find operator engine tests hack -name __pycache__ -type d -prune -exec rm -rf {} +

# The parts of setup. Each looks first whether there is anything to do.
.PHONY: packages environment engine model kubernetes helm constraints
packages:
	@PYTHON=$(PYTHON) hack/setup/packages.sh
environment: packages
	@$(PYTHON) -m hack.setup.environment
engine: environment
	@$(PYTHON) -m hack.setup.engine
model: engine
	@.venv/engine/bin/python -m hack.setup.model
kubernetes: packages
	@$(PYTHON) hack/kubernetes/build.py
images: environment
	@$(PYTHON) -m hack.setup.images
helm: packages
	@$(PYTHON) hack/kubernetes/build.py --only helm

constraints: environment # Pin the versions that .venv has now
	@{ sed -n '/^#/p' hack/setup/constraints.txt; $(BIN)/pip freeze --exclude-editable; } > out/constraints.txt
	@mv out/constraints.txt hack/setup/constraints.txt
