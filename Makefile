# Every command a person or a machine needs. `make demo` first; `make test` is what CI runs.
#
#   make demo                         would cooperation help? (embedded data, report in comparison/report.html)
#   make test                         lint, types, tests, a sample of them with the lowest versions, documentation
#   make lint                         the first two of them
#   make test-lowest                  a sample of the tests with the lowest versions that pyproject.toml allows
#   make docs                         the documentation as pages that open without a network: site/index.html
#   make soak                         every test with all of its cases; kill and resume real runs, 200 times; real peers
#                                     killed, cut off, with faults (each run replayed) and for an hour, and every
#                                     method by six of them (soak_peers.py, in parts with --first, --join); an hour of
#                                     damaged files for every reader
#   make same-numbers BASE=<commit>   do this tree and another commit give the same numbers, to the bit?
#   make bench-cpu, make bench-gpu    the benchmarks; results go to benchmarks/results/
#   make bench-rivals                 the same FedAvg experiment through Flower, pfl, FedJAX and PyTorch, each installed into
#                                     an environment of its own: half an hour on two idle cores, docs/results/rivals.md
#   make reproduce-small              the papers' tables that need no GPU, in a quarter of an hour on two cores: docs/results/papers.md
#   make reproduce-gpu                the others, in 25 minutes on one H200
#   make clean                        remove the environments and caches (never results)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
LOWEST := .venv-lowest
TORCH ?= torch
TORCH_CPU ?= https://download.pytorch.org/whl/cpu
CUDA ?= cuda12

.DEFAULT_GOAL := help
.PHONY: help demo test lint test-lowest docs soak same-numbers bench-cpu bench-gpu bench-rivals reproduce-small reproduce-gpu clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/installed-demo
	$(BIN)/coterie compare

# Tests compile thousands of small programs once each, where most of LLVM's optimisations cost more than they give (a third
# of the time), and so does the newer of XLA's two ways to write loops (two fifths of the rest). `make soak` compiles
# everything as users do.
# JAX 0.11 and later have only the newer one, and do not start if it is asked for the other.
QUICK := --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true
EMITTERS = $$($(1)/bin/python -c 'from importlib.metadata import version as v; \
  print("--xla_cpu_use_fusion_emitters=false" * (v("jax").split(".")[:2] == ["0", "10"]))')
PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal

# What uses one core runs in pairs.
test:
	$(MAKE) -j2 $(VENV)/installed-dev $(LOWEST)/installed
	$(MAKE) -j2 lint docs
	XLA_FLAGS="$(QUICK) $(call EMITTERS,$(VENV))" $(PYTEST)
	$(MAKE) test-lowest

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What an old version lacks shows where libraries are used most: the command line with its report, tables, graphs, loops
# on the host. Another sample: make test-lowest SAMPLE=tests/methods. Old libraries warn of newer ones: no error here.
SAMPLE := tests/attacks/test_machine.py tests/codecs/test_frame.py tests/data/tables tests/data/test_files.py \
  tests/graphs/test_graph.py tests/numerics/test_codebook.py::test_codebook_by_hand tests/sites/test_keys.py \
  tests/test_registry.py

test-lowest: $(LOWEST)/installed
	XLA_FLAGS="$(QUICK) $(call EMITTERS,$(LOWEST))" $(LOWEST)/bin/python -m pytest -n 2 --dist worksteal -o filterwarnings=default $(SAMPLE)

# mkdocs is strict: a broken link, a wrong docstring or a page that is not in the menu ends it.
docs: $(VENV)/installed-dev
	$(BIN)/python docs/_build/catalogue.py
	$(BIN)/python docs/_build/choose.py
	$(BIN)/python docs/_build/papers.py
	$(BIN)/python docs/_build/estimators.py
	$(BIN)/python docs/_build/pfllib.py
	$(BIN)/python docs/_build/rivals.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

soak: $(VENV)/installed-dev
	COTERIE_FULL=1 $(PYTEST)
	$(BIN)/python benchmarks/soak_kill.py
	$(BIN)/python benchmarks/soak_peers.py
	$(BIN)/python benchmarks/soak_fuzz.py
	$(BIN)/python benchmarks/soak_network.py
	$(BIN)/python benchmarks/soak_mesh.py
	$(BIN)/python benchmarks/soak_mesh.py --processes 2

same-numbers: $(VENV)/installed-dev
	@test -n "$(BASE)" || { echo "say which commit to compare with: make same-numbers BASE=<commit>" >&2; exit 2; }
	$(BIN)/python benchmarks/same_numbers.py "$(BASE)"

# A rival is measured in the same run, so benchmarks have environments of their own, with PyTorch in them.
# `make bench-gpu BENCH_PYTHON=python` takes the one that is active.
ifdef BENCH_PYTHON
bench_cpu := $(BENCH_PYTHON)
bench_gpu := $(BENCH_PYTHON)
else
bench_cpu := $(BENCH)/cpu/bin/python
bench_gpu := $(BENCH)/gpu/bin/python
bench-cpu: $(BENCH)/cpu/installed
bench-gpu: $(BENCH)/gpu/installed
endif

bench-cpu:
	$(bench_cpu) benchmarks/client_step.py --model mlp --device cpu
	$(bench_cpu) benchmarks/client_step.py --model cnn --device cpu
	$(bench_cpu) benchmarks/many_clients.py --device cpu
	$(bench_cpu) benchmarks/stream.py
	$(bench_cpu) benchmarks/overhead.py --device cpu
	$(bench_cpu) benchmarks/ring.py
	$(bench_cpu) benchmarks/sweep.py --device cpu --rounds 500

bench-gpu:
	$(bench_gpu) benchmarks/client_step.py --model cnn --device gpu --augment --steps 100
	$(bench_gpu) benchmarks/client_step.py --model mlp --device gpu --steps 200
	$(bench_gpu) benchmarks/many_clients.py --device gpu --clients 100000
	$(bench_gpu) benchmarks/overhead.py --device gpu
	$(bench_gpu) benchmarks/sweep.py --device gpu --model mlp --rounds 200

# TORCH and TORCH_CPU say which PyTorch the rivals get, and from which package index (TORCH_CPU= for pip's own).
bench-rivals: $(VENV)/installed-demo
	$(BIN)/python benchmarks/rivals/run.py --torch "$(TORCH)" --torch-index "$(TORCH_CPU)"
	$(BIN)/python docs/_build/rivals.py

# A table that fails for want of data does not keep the page from the others.
reproduce-small: $(VENV)/installed-dev
	-$(BIN)/python benchmarks/reproduce.py small
	$(BIN)/python docs/_build/papers.py

ifdef BENCH_PYTHON
reproduce_gpu := $(BENCH_PYTHON)
else
reproduce_gpu := $(BENCH)/gpu/bin/python
reproduce-gpu: $(BENCH)/gpu/installed
endif

reproduce-gpu:
	-$(reproduce_gpu) benchmarks/reproduce.py gpu
	$(reproduce_gpu) docs/_build/papers.py

clean:
	rm -rf $(VENV) $(BENCH) $(LOWEST) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The environments. A stamp says what is installed; it is out of date when pyproject.toml changes.

define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "coterie needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there);" \
    "name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
@test -x $(1)/bin/pip || $(PYTHON) -m venv $(1)
@echo "installing into $(1) (once; a few minutes on a slow line)"
endef

$(VENV)/installed-demo: pyproject.toml
	$(call environment,$(VENV))
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[report]'
	@touch $@

$(VENV)/installed-dev: pyproject.toml
	$(call environment,$(VENV))
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/installed-demo

$(LOWEST)/installed: pyproject.toml tests/support/lowest.py
	$(call environment,$(LOWEST))
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check packaging
	@$(LOWEST)/bin/python tests/support/lowest.py > $(LOWEST)/lowest.txt
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(LOWEST)/lowest.txt \
	  -e '.[report,parquet,numba,network]' hypothesis pytest pytest-timeout pytest-xdist
	@touch $@

$(BENCH)/cpu/installed: pyproject.toml
	$(call environment,$(BENCH)/cpu)
	@$(BENCH)/cpu/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" --index-url $(TORCH_CPU)
	@$(BENCH)/cpu/bin/python -m pip install --quiet --disable-pip-version-check -e '.[report,network]'
	@touch $@

$(BENCH)/gpu/installed: pyproject.toml
	$(call environment,$(BENCH)/gpu)
	@$(BENCH)/gpu/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" -e '.[report,$(CUDA)]'
	@touch $@
