# Everything runs in .venv, made here. A stamp per set of dependencies keeps a second `make` from working twice.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
CPU    := runtime/kvasir/kernels/cpu
# What an install is made of besides the code, which it only points at: a change of these needs a new one.
BUILT  := pyproject.toml hatch_build.py $(wildcard $(CPU)/*.c $(CPU)/*.h $(CPU)/*.inc)

.DEFAULT_GOAL := help
.PHONY: help up test e2e e2e-operator e2e-load images lint format demo-model cluster cluster-down kind-node clean

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

up: $(VENV)/.run  ## serve the demo model on this machine: two ranks on CPU, until Ctrl-C
	@exec $(BIN)/kvasir up manifests/examples/demo.yaml

test: lint  ## lint, types, layering and all tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

# Three targets, so that each is done while one waits for it. All but the second need a Kubernetes, which is made for
# them (or is that of KUBECONFIG, if KVASIR_E2E_INSTALL=yes).
LOAD := e2e/load
e2e: $(VENV)/.dev  ## the end-to-end tests on a Kubernetes of three nodes
	@$(BIN)/python -m pytest e2e --ignore=e2e/operator --ignore=$(LOAD) $(PYTEST_ARGS)

e2e-operator: $(VENV)/.dev  ## the operator against a real API server, without nodes
	@$(BIN)/python -m pytest e2e/operator $(PYTEST_ARGS)

e2e-load: $(VENV)/.dev  ## every change, scale and drain on that Kubernetes while requests come in
	@$(BIN)/python -m pytest $(LOAD) $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

images:  ## build the three container images, with docker or buildah
	@$(PYTHON) -m images.build $(IMAGES_ARGS)

format: $(VENV)/.dev  ## rewrite the code in the format of ruff
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

demo-model: $(VENV)/.dev  ## train the demo model again from demo/corpus, write it into the package, and measure it
	@$(BIN)/python demo/train.py $(TRAIN_ARGS)

cluster: | $(BIN)/python  ## a Kubernetes of three nodes on this machine with Kvasir in it, left up; prints how to use it
	@$(BIN)/python -m e2e.installed

cluster-down: | $(BIN)/python  ## remove that cluster and every trace of it
	@$(BIN)/python -m e2e.kind down

kind-node: | $(BIN)/python  ## make the node image that a machine without a registry needs, ahead of a cluster
	@$(BIN)/python -m e2e.kind node

clean:  ## remove the environment, the compiled kernels and every cache
	rm -rf $(VENV) $(CPU)/*.so .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Kvasir needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python's venv module is missing (Debian: apt-get install python3-venv)"; exit 1; }

$(VENV)/.run: $(BUILT) | $(BIN)/python
	@echo "Installing Kvasir into $(VENV) (torch is large: a few minutes the first time)"
	@$(PIP) install --progress-bar on -e '.[frontend,engine,bench]'
	@touch $@

$(VENV)/.dev: $(BUILT) $(VENV)/.run | $(BIN)/python
	@$(PIP) install --progress-bar on -e '.[frontend,engine,bench,operator,dev]'
	@touch $@
