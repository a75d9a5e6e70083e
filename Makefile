# `make` explains the targets. TORCH=2.14.1 in front of any of them uses another torch, in an environment and a build
# folder of its own.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

DEFAULT_TORCH := 2.13.0
TORCH ?= $(DEFAULT_TORCH)
PYTHON ?= python3
ARGS ?=
SANITIZE ?=
LEVELS ?=

ifeq ($(TORCH),$(DEFAULT_TORCH))
VENV := .venv
else
VENV := .venv-$(TORCH)
endif
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
BUILD := build/torch-$(TORCH)
JOBS := $(shell nproc)

# Python's tests use one thread each; the tests of a file share a process, and with it what the file's fixtures make.
test: export PYTEST_ADDOPTS ?= --numprocesses=logical --maxprocesses=8 --dist=loadfile --no-loadscope-reorder

.PHONY: help
help:
	@echo 'make demo     train a small language model, then stretch its context with each scaling (ARGS="--help" explains)'
	@echo 'make test     run every test, C++ and Python; SANITIZE=address,undefined runs the C++ tests with sanitizers'
	@echo 'make bench    measure the ops against other implementations'
	@echo 'make lint     check formatting, types and the rules of this repository'
	@echo 'make tidy     look for common faults in the C++ sources with clang-tidy (ARGS: a pattern of files)'
	@echo 'make coverage what the tests run of the C++ and Python sources (ARGS go to pytest), as pages in build/coverage'
	@echo 'make build    build, and install for development into $(VENV)'
	@echo 'make clean    remove what was built (not $(VENV))'
	@echo
	@echo 'Each installs what it lacks: system packages (with apt, where allowed), torch $(TORCH) and others into $(VENV).'
	@echo 'TORCH=2.14.1 make test uses another torch; MAX_JOBS=N limits parallel compilation; LEVELS=avx2 compiles kernels for'
	@echo 'fewer instruction sets, for a quick look.'

# Environment. A stamp is named after what it stands for, so a change of versions installs again and nothing else does.

stamp = $(VENV)/.stamp-$(1)-$(shell cat requirements/*.txt | sha256sum | cut -c1-12)
TORCH_STAMP := $(VENV)/.stamp-torch-$(TORCH)

.PHONY: system
system:
	@PYTHON=$(PYTHON) tools/system_packages

$(TORCH_STAMP): | system
	@echo 'Installing torch $(TORCH) into $(VENV)'
	[[ -x $(PY) ]] || $(PYTHON) -m venv $(VENV)
	echo 'torch==$(TORCH)' > $(VENV)/constraints.txt
	$(PY) -m pip install --disable-pip-version-check torch==$(TORCH)
	@touch $@

$(VENV)/.stamp-%: | $(TORCH_STAMP)
	@name='$*'; name="$${name%-*}"; echo "Installing requirements/$$name.txt into $(VENV)"; \
	$(PIP) --constraint $(VENV)/constraints.txt --requirement "requirements/$$name.txt"
	@touch $@

# Build. Python's build drives CMake; `call build,ARGUMENTS` passes it more of CMake's arguments.
# The environment of the default torch gets an editable install, that of another torch a wheel, so they do not fight
# over the folder python/posenc.

ifeq ($(TORCH),$(DEFAULT_TORCH))
define build
	POSENC_BUILD_DIR=$(BUILD) POSENC_CMAKE_ARGS="-DPOSENC_LEVELS=$(LEVELS) $(1)" $(PY) setup.py -q build_ext --inplace
	@if [[ ! -e $(call stamp,editable) ]]; then \
	  POSENC_BUILD_DIR=$(BUILD) POSENC_CMAKE_ARGS="-DPOSENC_LEVELS=$(LEVELS) $(1)" $(PIP) --no-build-isolation --no-deps --editable . ; \
	  touch $(call stamp,editable); \
	fi
endef
else
define build
	rm -rf $(BUILD)/wheel
	POSENC_BUILD_DIR=$(BUILD) POSENC_CMAKE_ARGS="-DPOSENC_LEVELS=$(LEVELS) $(1)" $(PY) setup.py -q bdist_wheel --dist-dir $(BUILD)/wheel
	$(PIP) --no-deps --force-reinstall $(BUILD)/wheel/*.whl
endef
endif

.PHONY: build
build: system $(call stamp,build)
	$(call build,)

# build_cpp,FOLDER,ARGUMENTS builds libposenc and the C++ tests without Python.
define build_cpp
	[[ -e $(1)/CMakeCache.txt ]] || ! command -v ninja >/dev/null || export CMAKE_GENERATOR=Ninja; \
	torch="$$($(PY) -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')"; \
	cmake -S . -B $(1) -DPOSENC_BUILD_PYTHON=OFF -DPOSENC_BUILD_EXAMPLES=OFF -DCMAKE_PREFIX_PATH="$$torch" $(2)
	cmake --build $(1) --parallel $(or $(MAX_JOBS),$(JOBS))
endef

# Programs

.PHONY: demo
demo: system $(call stamp,build) $(call stamp,demo)
	$(call build,)
	$(PY) examples/python/train_lm.py $(ARGS)

.PHONY: bench
bench: system $(call stamp,build) $(call stamp,bench)
	$(call build,-DPOSENC_BUILD_BENCHMARKS=ON)
	$(PY) benchmarks/python/run.py --cpp $(BUILD)/benchmarks/cpp/posenc_benchmarks $(ARGS)

.PHONY: lint
lint: system $(TORCH_STAMP) $(call stamp,lint)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" tools/lint

.PHONY: tidy
tidy: system $(TORCH_STAMP) $(call stamp,tidy)
	@[[ -e build/tidy/CMakeCache.txt ]] || ! command -v ninja >/dev/null || export CMAKE_GENERATOR=Ninja; \
	cmake -S . -B build/tidy -DPython_EXECUTABLE="$(CURDIR)/$(PY)" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" tools/tidy build/tidy $(ARGS)

.PHONY: test
ifeq ($(SANITIZE),)
test: system $(call stamp,build) $(call stamp,test)
	$(call build,-DPOSENC_BUILD_TESTS=ON -DPOSENC_BUILD_EXAMPLES=ON -DPOSENC_BUILD_BENCHMARKS=ON)
	ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS)
	@levels="$$($(PY) -c 'from posenc import _C; print(*_C.cpu_capabilities())')"; best="$${levels##* }"; \
	for level in $${levels% *}; do \
	  [[ $$level != $$best ]] || continue; \
	  echo "Python tests of kernels at instruction set $$level"; \
	  which=; [[ $$best != $${level}_bf16 ]] || which='-k bfloat16'; \
	  POSENC_CPU_CAPABILITY=$$level $(PY) -m pytest -q -m kernels $$which $(ARGS); \
	done
	$(PY) -m pytest -q $(ARGS)
else
comma := ,
test: system $(TORCH_STAMP)
	$(call build_cpp,build/sanitize-$(subst $(comma),-,$(SANITIZE))-torch-$(TORCH),-DPOSENC_SANITIZE=$(SANITIZE))
	ctest --test-dir build/sanitize-$(subst $(comma),-,$(SANITIZE))-torch-$(TORCH) --output-on-failure
endif

.PHONY: coverage
COVERAGE := build/coverage/torch-$(TORCH)
coverage: system $(call stamp,build) $(call stamp,test) $(call stamp,coverage)
	$(call build_cpp,$(COVERAGE),-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=--coverage -DPOSENC_LEVELS=$(or $(LEVELS),default))
	find $(COVERAGE) -name '*.gcda' -delete
	ctest --test-dir $(COVERAGE) --output-on-failure --tests-regex '^cpp[.]'
	$(PY) -m gcovr --root . --filter csrc/ --exclude-throw-branches --gcov-ignore-errors no_working_dir_found \
	  --print-summary --html-nested build/coverage/cpp.html $(COVERAGE)
	$(call build,)
	$(PY) -m coverage run --source python/posenc --data-file build/coverage/python.data -m pytest -q $(ARGS)
	$(PY) -m coverage html --quiet --data-file build/coverage/python.data --directory build/coverage/python
	$(PY) -m coverage report --data-file build/coverage/python.data --format total
	@echo 'Line by line: build/coverage/cpp.html and build/coverage/python/index.html'

.PHONY: clean
clean:
	rm -rf build dist out python/*.egg-info python/posenc/{include,lib,share,_build_info.py} python/posenc/_C*.so
	rm -f $(VENV)/.stamp-editable-*
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
