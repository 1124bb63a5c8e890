# Two commands: `make conformance` certifies the reference backend cpp_cpu; `make test` runs what CI runs. Both set up .venv first.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
EXTRAS ?= test
CONSTRAINTS ?= --constraint constraints.txt
WORKERS ?= 2
PYTEST_ARGS ?=
# One more than work at once: some wait for processes that they started.
TESTS = $(BIN)/pytest -n $$(($(WORKERS) + 1)) --dist worksteal
SITE = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.DEFAULT_GOAL := help
# Tests start hundreds of processes: without compiled files each would compile the SDK again.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help conformance test tests newest docs site types clean compiler

help:
	@echo 'make conformance   certify cpp_cpu (report in conformance-results/)'
	@echo 'make test          lint, types, tests and the site; PYTEST_ARGS="..." selects'
	@echo 'make newest        the tests, with the newest releases of all packages, in .venv-newest (torch takes gigabytes)'
	@echo 'make docs          regenerate the pages of hooks, loops, prims and public names'
	@echo 'make site          the documentation as a site: build/site/index.html'
	@echo 'make clean         remove .venv and reports'

conformance: compiler $(INSTALLED)
	$(BIN)/vendor-sdk conformance --backend cpp_cpu --effort standard -n $(WORKERS)

test: compiler $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory -j2 types site
	$(MAKE) --no-print-directory tests

tests: export OMP_NUM_THREADS := 1
tests: compiler $(INSTALLED)
	$(TESTS) --without all $(PYTEST_ARGS)
	$(TESTS) --needing $(PYTEST_ARGS)

newest:
	$(MAKE) --no-print-directory tests VENV=.venv-newest CONSTRAINTS=

docs: $(INSTALLED)
	$(BIN)/vendor-sdk docs

site: $(INSTALLED)
	$(SITE)

types: $(INSTALLED)
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .venv-newest build/site conformance-results

# The build backend is installed from the constraints too, hence no build isolation. Of the tens of thousands of files in these
# packages few are imported, and are compiled then.
$(INSTALLED): pyproject.toml constraints.txt Makefile
	@python=''; \
	for each in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
	  if "$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python="$$each"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo 'error: no Python 3.11 or newer on PATH. Install one, or name it: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; \
	fi; \
	echo "setting up $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile $(CONSTRAINTS) 'setuptools>=77'
	$(BIN)/python -m pip install --no-compile $(CONSTRAINTS) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@

compiler:
	@set -- $${CXX:-g++}; command -v "$$1" >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 || command -v c++ >/dev/null 2>&1 || { \
	  echo 'error: no C++ compiler on PATH, and the backend cpp_cpu compiles C++. Install one:' >&2; \
	  echo '  Debian, Ubuntu: apt-get install g++    Fedora: dnf install gcc-c++    macOS: xcode-select --install' >&2; \
	  echo 'or name yours: CXX=/path/to/compiler make ...' >&2; exit 1; }
