# Everything here needs Python 3.11 or newer with pip, and nothing else: `make setup` fetches the rest into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.setup-done
TIMM := .venv-timm
PEERS := .venv-peers

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test test-slow lint types imports docs docs-examples battery mutants mutants-short overhead speed speed-short peers \
	flower-overhead startup \
	attacks attacks-short kill kills-short soak soak-short many-nodes fuzz fuzz-short operations secure-sums flower-versions licences simulation cluster deployment timm \
	deployment-short watch devices gpu studies-short clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+( [a-z-]+)*:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## create .venv and install the package with its tools, at the pinned versions

# Runs again only when the dependencies or the pins change. A working .venv is kept, whatever PYTHON says.
$(INSTALLED): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Farfield needs Python 3.11 or newer; '$(PYTHON)' is" \
	      "$$($(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null || echo 'not a working interpreter')." >&2; \
	    for name in python3.15 python3.14 python3.13 python3.12 python3.11; do \
	      if $$name -c '' 2>/dev/null; then \
	        echo "This machine has $$name. Name it: make PYTHON=$$name setup" >&2; exit 1; \
	      fi; \
	    done; \
	    echo "Install one and name it: make PYTHON=/path/to/python3.11 setup" >&2; exit 1; \
	  fi; \
	  $(PYTHON) -m venv --clear $(VENV); \
	fi
	@echo "Installing into $(VENV); the first time takes a few minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]'
	@touch $@

demo: setup ## compare methods on digits turned by angles they were not trained on; writes demo/
	$(BIN)/farfield bench rotated-digits --algorithms erm,local-only,fedavg,fedprox,scaffold --seeds 2 --out demo --fresh

test: setup ## the test suite, without the long proofs
	$(BIN)/python -m pytest -q

lint: setup ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy, strict
	$(BIN)/mypy

imports: setup ## import-linter: dependencies point one way
	$(BIN)/lint-imports --no-logo

docs: setup ## build the documentation, warnings are errors
	$(BIN)/sphinx-build -E -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

docs-examples: setup ## type the commands of the docs pages and run their longer examples
	$(BIN)/python -m pytest -q -m long -n 2 tests/docs

test-slow: setup ## the tests that take several seconds each, which make test leaves out
	$(BIN)/python -m pytest -q -m slow

battery: setup ## what every method must pass
	$(BIN)/python -m pytest -q tests/battery

mutants: setup ## switch off, negate and double each term of each method: its worked example must notice
	$(BIN)/python -m tests.battery.mutants

mutants-short: setup ## one mutation per term, for every change
	FARFIELD_SHORT=1 $(BIN)/python -m tests.battery.mutants

overhead: setup ## time of a round against a bare PyTorch loop, and of FedIIR's step against FedAvg's
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.local_step

speed: setup peers ## every case of the speed suite, against a bare loop and the peers, and the table in docs/speed.md; hours
	$(BIN)/python -m benchmarks.speed; failed=$$?; $(BIN)/python -m benchmarks.speed.table && exit $$failed

speed-short: setup ## the same cases as small as they can be, to see that they run; the figures mean nothing
	$(BIN)/python -m benchmarks.speed --short --json build/speed-short.json

peers: $(PEERS)/.setup-done ## create .venv-peers, the environment of the libraries that the speed suite compares with

# Of its own, because pfl pins packages that Farfield needs in other versions.
$(PEERS)/.setup-done: benchmarks/speed/peers/requirements.txt $(INSTALLED)
	$(BIN)/python -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

flower-overhead: setup ## time of a round on Flower against an empty one, and against an app with Flower's defaults
	$(BIN)/python benchmarks/flower.py

startup: setup ## time of `import farfield` and `farfield --help`, against an empty Python and `import torch`
	$(BIN)/python benchmarks/startup.py

# The long proofs run one at a time: they kill processes and watch the clock.
ONE_BY_ONE := $(BIN)/python -m pytest -q -m long -n 0

attacks: setup ## the attacker's suite: a test for each known attack, the long ones included
	$(BIN)/python -m pytest -q -m "long or not long" tests/attacks

attacks-short: setup ## those of them that start real deployments, for every change; the quick ones are in make test
	$(ONE_BY_ONE) --timeout 900 tests/attacks -k "not bit_rot"

kill: setup ## random kills of benches, workers, servers and sites, over 200 in all: same bits, no row lost
	$(ONE_BY_ONE) --timeout 3600 tests/kills

kills-short: setup ## benches and workers alone, cut short enough for every change
	FARFIELD_SHORT=1 $(ONE_BY_ONE) tests/kills -k "not test_killed_deployment"

soak: setup ## 1,000 rounds with 30 % of the replies in trouble, and 200 simulated sites against one server
	$(ONE_BY_ONE) --timeout 6000 tests/soak/test_soak.py tests/soak/test_many_sites.py

many-nodes: setup ## 200 nodes of Flower with a key and a connection each, against one server: hours on two cores
	$(ONE_BY_ONE) --timeout 20000 tests/soak/test_many_nodes.py

soak-short: setup ## the same, with few rounds and nodes
	FARFIELD_SHORT=1 $(ONE_BY_ONE) tests/soak

fuzz: setup ## a million fuzzed inputs over everything that is read
	$(BIN)/python -m tests.fuzz.run --inputs 1000000 --engine both --workers 2

fuzz-short: setup ## the same, with few inputs
	$(BIN)/python -m tests.fuzz.run --short --workers 2

operations: setup ## the long proofs of running servers and sites: addresses, restarts, signals, removal, new keys, a slow network
	$(ONE_BY_ONE) --timeout 3600 tests/deployment/test_operations.py tests/deployment/test_changed_sites.py tests/deployment/test_slow_network.py

secure-sums: setup ## the long proofs of secure sums: every way to leave, real deployments
	$(ONE_BY_ONE) --timeout 3600 tests/federation/secure_sums tests/deployment/test_secure_sums.py

timm: $(TIMM)/.setup-done ## models of timm as backbones, in an environment of their own that borrows the packages of .venv
	PYTHONPATH=$(CURDIR)/src $(TIMM)/bin/python -m pytest -q -n 0 -m "slow or not slow" tests/models/test_timm_*.py

# Without dependencies: the torchvision that fits this torch may need libraries of CUDA, and would bring them all.
$(TIMM)/.setup-done: $(INSTALLED)
	$(BIN)/python -m venv --clear $(TIMM)
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > "$$($(TIMM)/bin/python -c 'import site; print(site.getsitepackages()[0])')/borrowed.pth"
	$(TIMM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'timm==1.0.30' 'torchvision==0.28.0'
	@touch $@

flower-versions: setup ## a deployment on the lowest and on the highest version of Flower that can be installed
	$(BIN)/python tests/deployment/flower_versions.py

licences: setup ## check that every installed package may be used with this one
	$(BIN)/python .ci/licences.py

simulation: setup ## the long proofs of --engine flower: same bits as local, processes that end, hang or are interrupted
	$(BIN)/python -m pytest -q -m long -n 0 tests/engines/test_simulation.py tests/engines/test_simulation_faults.py

cluster: setup ## the long proofs of --on ray and --share: a node killed in the middle, shares that start at once
	$(ONE_BY_ONE) --timeout 1800 tests/runs/cluster tests/runs/test_shares_at_once.py

deployment: setup ## the long proofs of farfield server and client: real SuperLinks and SuperNodes on loopback
	$(BIN)/python -m pytest -q -m long -n 0 tests/deployment

deployment-short: setup ## some of them, for every change: same bytes, a killed server, strangers, the walk-through of the docs
	$(BIN)/python -m pytest -q -m long -n 0 tests/deployment -k "one_machine and scaffold and not secure or killed_server and scaffold and not secure or nobody or walk"

watch: setup ## the long proofs of farfield watch: a bench and its view are killed and started again under an open page
	$(BIN)/python -m pytest -q -m long -n 0 tests/watch

devices: setup ## every method on a GPU that is pretended, to find tensors that mix devices
	$(BIN)/python -m pytest -q -m pretended_gpu -n 0 tests/devices

gpu: setup ## for machines with a GPU: rounds on it against rounds on the CPU, memory, several GPUs; skipped without one
	$(BIN)/python -m pytest -q -rs -m gpu -n 0 tests/devices

studies-short: setup ## the figures of docs/statistics.md and docs/new-site.md, with few draws; real data from FARFIELD_DATA
	$(BIN)/python -m studies.power --short
	$(BIN)/python -m studies.new_site_coverage --short
	$(BIN)/python -m studies.false_alarms --short
	$(BIN)/python -m studies.robust_rules --short
	$(BIN)/python -m studies.membership_inference --short
	$(BIN)/python -m studies.reconstruction

clean: ## remove caches and built files; .venv stays
	rm -rf build dist demo docs/_build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## clean, and remove .venv, .venv-timm and .venv-peers
	rm -rf $(VENV) $(TIMM) $(PEERS)
