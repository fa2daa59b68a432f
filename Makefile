# `make help` lists the targets. Everything happens in .venv and build; nothing needs root.
PYTHON ?= python3
SHELL := /bin/bash
ifneq ($(words $(CURDIR)),1)
$(error make takes no path with a space: move this clone out of "$(CURDIR)", as by mv, and run make there)
endif
VENV := $(CURDIR)/.venv
export PATH := $(VENV)/bin:$(PATH)
# The compiler's warnings are errors here, though not for those who only install.
export CMAKE_ARGS ?= -DOMNIHVD_WERROR=ON
quick-engine wheel: export CMAKE_ARGS := $(filter-out -DOMNIHVD_WERROR=ON,$(CMAKE_ARGS))
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif
CORES := $(shell nproc)
# Tests wait for a third of their time: for launchers, for ranks, for time-outs.
WORKERS := $(shell echo $$(( ($(CORES) * 3 + 1) / 2 )))
PIP := python -m pip --disable-pip-version-check --quiet
MANYLINUX := quay.io/pypa/manylinux_2_28_x86_64
MANYLINUX_PYTHONS := cp39-cp39 cp310-cp310 cp311-cp311 cp312-cp312 cp313-cp313
CXX_FILES = $(shell find omnihvd/csrc simulator kernels tests benchmarks examples -regex '.*\.\(cc\|c\|h\|cu\|cuh\)')

.PHONY: help setup quick-engine quick build demo check t size test lint tidy pytest test-slow gpu test-gpu sanitize docs coverage bench targets models map simulate fuzz campaign mutants bench-gpu wheel release clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

# --- set-up: each step leaves a stamp ---------------------------------------------------------

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 9) <= sys.version_info < (3, 14))' || \
	  { echo "Python 3.9 to 3.13 is needed, as: make PYTHON=python3.11 ..."; exit 1; }
	@echo "== virtual environment in .venv"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# A PYTHON that is given is that of .venv, or one would test another than one thinks.
.PHONY: same-python
same-python: $(VENV)/.created
ifneq ($(origin PYTHON),file)
	@version='import sys; print("%d.%d" % sys.version_info[:2])'; \
	have=$$($(VENV)/bin/python -c "$$version") && given=$$($(PYTHON) -c "$$version") || exit 1; \
	[ "$$have" = "$$given" ] || \
	  { echo ".venv has Python $$have, and PYTHON=$(PYTHON) is $$given: rm -r .venv, then make again"; exit 1; }
endif

$(VENV)/.packages: .ci/torch.txt .ci/unresolved.txt .ci/requirements.txt .ci/constraints.txt | $(VENV)/.created same-python
	@echo "== Python packages (about 1 GB; minutes)"
	@$(PIP) install --retries 2 --no-deps -r .ci/unresolved.txt
	@$(PIP) install -r .ci/requirements.txt -c .ci/constraints.txt
	@touch $@

$(VENV)/.horovod: omnihvd/tools/build_horovod.py $(VENV)/.packages
	@echo "== Horovod"
	@python $<
	@touch $@

$(VENV)/.optional: .ci/optional.txt | $(VENV)/.packages
	@echo "== Ray, Spark, Lightning, Accelerate and TensorBoard, for tests (0.5 GB)"
	@$(PIP) install --no-deps --no-build-isolation -r $<
	@touch $@

$(VENV)/.docs: .ci/docs.txt | $(VENV)/.packages
	@$(PIP) install --no-deps -r $<
	@touch $@

$(VENV)/.tools: .ci/tools.txt | $(VENV)/.packages
	@$(PIP) install --no-deps -r $<
	@touch $@

$(VENV)/.coverage: .ci/coverage.txt | $(VENV)/.packages
	@$(PIP) install --no-deps -r $<
	@touch $@

# After this the engine is built in place, and `import omnihvd` finds this folder.
$(VENV)/.installed: setup.py pyproject.toml $(wildcard kernels/__init__.py) $(VENV)/.packages
	@echo "== omnihvd, in place"
	@python -m pip --disable-pip-version-check install --no-build-isolation --no-deps -qe .
	@touch $@

# For `make quick`: PyTorch, and beside it what builds the engine; no MPI, Horovod or TensorFlow.
$(VENV)/.quick-torch: .ci/torch.txt | $(VENV)/.created same-python
	@echo "== PyTorch for CPUs (200 MB), and the engine"
	@$(PIP) install --retries 2 --no-deps -r $<
	@touch $@

$(VENV)/.quick-tools: .ci/quick.txt .ci/constraints.txt | $(VENV)/.created same-python
	@$(PIP) install -r .ci/quick.txt -c .ci/constraints.txt
	@touch $@

setup: $(VENV)/.installed $(VENV)/.horovod  ## virtual environment, Horovod, omnihvd

# --- targets ----------------------------------------------------------------------------------

# 100 files without the MPI and NCCL shims and the simulation: 1 s of a core each, and the linker.
quick-engine: $(VENV)/.quick-tools
	@[ -e omnihvd/lib/libomnihvd.so ] || echo "== the engine: about $$((100 / $$(nproc) + 10)) s of compiling, once (on $$(nproc) cores)"
	@OMNIHVD_TARGETS="omnihvd _engine" python setup.py -q build_ext --inplace

quick:  ## train under DDP on 4 ranks, plain and with OmniReduce: needs neither Horovod nor MPI
	@[ -e $(VENV)/.quick-torch ] || echo "== once: PyTorch (200 MB) and the engine, a few minutes; then two trainings, about a minute"
	@$(MAKE) --no-print-directory -j2 $(VENV)/.quick-torch quick-engine
	@python examples/demo.py --under ddp --steps 20

build: setup  ## the engine, in place
	@python setup.py -q build_ext --inplace

demo: build  ## train a language model on 4 ranks, plain and with OmniReduce
	@python examples/demo.py

# No launcher and no network namespace: the protocol, units of the engine, and what the sources say.
CHECK = tests/protocol tests/ways tests/simulator tests/session/test_settings.py tests/test_imports.py \
  tests/packaging/test_size.py tests/documents/test_figures.py tests/documents/test_readme.py

check: lint build  ## what takes less than two minutes: lint, types, protocol, units of the engine
	@python -m pytest -q -n $(CORES) $(CHECK) -m 'not slow and not gpu'

t: build  ## T=tests/session/test_levels.py::test_sums: some tests alone
	@test -n "$(T)" || { echo "name the tests: make t T=tests/session/test_levels.py"; exit 2; }
	@python -m pytest $(T)

test: lint tidy pytest  ## everything but what takes long or needs a GPU

lint: $(VENV)/.packages  ## formats and static checks
	@ruff check .
	@ruff format --check .
	@clang-format --dry-run -Werror $(CXX_FILES)
	@mypy
	@.ci/prose
	@.ci/commits

size:  ## the product's lines by part, beside what each may have
	@.ci/size

tidy: build $(VENV)/.tools  ## clang-tidy over what changed since it passed
	@.ci/tidy

pytest: build $(VENV)/.optional $(VENV)/.docs
	@python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not slow and not gpu'

docs: build $(VENV)/.docs  ## the documents and the API as a site: build/site/index.html
	@python -m sphinx -q -W --keep-going -c docs/site . build/site
	@echo "build/site/index.html"

test-slow: build $(VENV)/.optional  ## the tests that take minutes or gigabytes
	@python -m pytest -m 'slow and not gpu'

# Without a GPU all of its tests would be skipped, which is no success.
gpu:
	@python -c 'import torch; torch.cuda.is_available() or exit("no GPU that PyTorch can use")'

test-gpu: build gpu  ## the tests for NVIDIA GPUs
	@python -m pytest -m gpu

sanitize: build  ## the engine's tests under address, undefined and thread sanitizers
	@.ci/sanitize address,undefined
	@.ci/sanitize thread

coverage: setup $(VENV)/.coverage  ## what the tests reach, Python and C++; an hour
	@.ci/coverage

bench: build  ## this and its peers, side by side; as root on hosts with shaped links
	@python -m benchmarks.bench --json build/bench/bench.json --plots build/bench

targets: build  ## all figures of benchmarks/README.md; root, 40 minutes
	@python benchmarks/targets.py

models: build  ## the paper's six models (DATA=folder); as root on hosts with shaped links
	@python examples/models/run.py --model all $(if $(DATA),--data $(DATA)) \
	  $(if $(filter 0,$(shell id -u)),,--local)

simulate: build  ## random jobs over a bad network, for a minute
	@python -m simulator --faults --seconds 60 --processes 2

fuzz:  ## the fuzz targets (tests/fuzz), a minute each; needs clang
	@.ci/fuzz

campaign: build  ## random jobs in real processes under faults, a minute or HOURS=8; root
	@python -m benchmarks.campaign $(if $(HOURS),--hours $(HOURS)) $(if $(JSON),--json $(JSON))

mutants: build  ## a mutation score, by bugs that a machine plants; hours
	@python -m benchmarks.mutants --json benchmarks/results/mutants.json

map: build  ## where it is faster than its peers, and where not; root, 70 minutes
	@python benchmarks/map.py

bench-gpu: build gpu  ## measure on this machine's GPU
	@python benchmarks/union_gpu.py
	@python benchmarks/kernels_gpu.py
	@python benchmarks/nccl_gpu.py
	@python benchmarks/nccl_gpu.py --dtype bfloat16 --op avg --densities 1 0.1

wheel:  ## dist: a source distribution, and a wheel that is installed without a compiler
	@PYTHONS="$(PYTHON)" .ci/wheel

.PHONY: wheels
wheels:  ## dist: a wheel for each Python and any Linux from glibc 2.28 on; needs Docker
	@docker run --rm --user "$$(id -u):$$(id -g)" -e HOME=/tmp -v "$(CURDIR):/src" -w /src -e OMNIHVD_PROJECT_URL \
		-e PYTHONS="$(patsubst %,/opt/python/%/bin/python,$(MANYLINUX_PYTHONS))" $(MANYLINUX) .ci/wheel

release:  ## VERSION=1.2.3: its version and changes, committed and tagged
	@.ci/release $(VERSION)

clean:  ## remove what was built; .venv stays
	rm -rf build dist *.egg-info omnihvd/lib omnihvd/_engine*.so
