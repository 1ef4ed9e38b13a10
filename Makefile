# make demo   the main job here, for real, on the CPU
# make test   every check
# make test-all   every check, with the whole tables of faults; needs root, as make test-lab
# make test-lab   on nodes with real sshd and Docker Engines, on this machine; needs root, installs what is missing
# make bench   speed, each beside a named baseline of the same run; needs root and what `make test-lab` needs
# All make .venv where it is missing and install what they need; a second call installs nothing.

PYTHON   ?= python3
RUNS_DIR ?= cvs_runs
OVERRIDES ?=
VENV     := .venv
BIN      := $(VENV)/bin

# PyTorch for the CPU lies on PyTorch's own index; where that cannot be reached, pip takes what else it finds.
TORCH     := torch==2.13.0
TORCH_CPU := https://download.pytorch.org/whl/cpu
WITH_TORCH := $(if $(TORCH_PYTHON),,$(VENV)/.torch)

.PHONY: demo test test-all test-lab bench tools lint types imports docs clean

demo: $(VENV)/.core $(WITH_TORCH)
	@$(BIN)/cvs run test_aorta \
		--cluster_file cvs/input/cluster_file/local_cluster.json \
		--config_file cvs/input/config_file/aorta/aorta_local.yaml \
		--runs_dir '$(RUNS_DIR)' --training_overrides '$(OVERRIDES)'

test: lint types imports docs tools $(WITH_TORCH)
	$(BIN)/pytest -n 2 --dist loadfile -m 'not full and not lab and not timed'
	$(BIN)/pytest -n 2 --dist load -m 'timed and not full'

test-all: lint types imports docs tools $(WITH_TORCH)
	$(BIN)/pytest -n 2 --dist loadfile -m 'not lab and not timed'
	$(BIN)/pytest -n 2 --dist load -m timed
	PYTHONPATH=tests $(BIN)/python -m lab install
	$(BIN)/pytest -n 2 --dist loadfile -m lab

test-lab: $(VENV)/.test $(VENV)/.torch
	PYTHONPATH=tests $(BIN)/python -m lab install
	$(BIN)/pytest -n 2 --dist loadfile -m 'lab and not full'

bench: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m lab install
	PYTHONPATH=tests:. $(BIN)/python -m benchmarks

tools: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m lab install git openssh-client openssh-server

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.test
	$(BIN)/mypy

imports: $(VENV)/.test
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.test
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf $(VENV) docs/_build cvs_runs build *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "$(PYTHON): no such program; name a Python 3.10 or newer: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "cvs needs Python 3.10 or newer, $(PYTHON) is not; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@touch $@

$(VENV)/.core: pyproject.toml | $(VENV)/.made
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[stacks]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.made
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,docs]'
	@touch $@ $(VENV)/.core

$(VENV)/.torch: | $(VENV)/.made
	@echo "Installing PyTorch for the CPU into $(VENV): about 200 MB to load, 900 MB on disk;" \
		"to use an interpreter that has it: make $(MAKECMDGOALS) TORCH_PYTHON=…"
	$(BIN)/pip install --quiet --disable-pip-version-check --retries 1 $(TORCH) --extra-index-url $(TORCH_CPU)
	@touch $@
