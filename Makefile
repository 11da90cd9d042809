# Everything there is to do with a checkout. What a target needs is set up first, in .venv, and nowhere else.
# The Python to use: make test PYTHON=/path/to/python3. If it has torch already, that one is used; any will do.

PYTHON ?= python3
EXAMPLES ?= 100000
LOGINS := tests/e2e/test_ssh_login.py tests/e2e/test_ssh_pipe.py tests/e2e/test_ssh_lab.py
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Python compiles each module once, not in each process. (Some containers forbid that.)
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all test-newest chaos gpu breakages examples fuzz lint docs clean

help:
	@echo 'make demo     train on two hosts on this machine over real SSH (about a minute)'
	@echo 'make test     run the unit tests (about five minutes); ARGS="tests/node -x" selects others'
	@echo 'make test-all run all tests, as CI does (an hour or more)'
	@echo 'make test-newest  run unit tests and logins with the newest versions that pyproject.toml allows'
	@echo 'make chaos    inject faults into runs (two hours; needs root)'
	@echo 'make gpu      run all tests and benchmarks that need a GPU, on this machine (nine minutes at most); ARGS="--device cpu" tries them without one'
	@echo 'make breakages  make every fault that check knows, in a lab (about ten minutes)'
	@echo 'make examples  start Lightning, DeepSpeed, JAX, Ray and other programs on two hosts of a lab; PROGRAMS="jax ray" for some (needs root)'
	@echo 'make fuzz     test random inventories, frames, log lines and answers of hostile hosts (half an hour or more); EXAMPLES=1000 for fewer'
	@echo 'make lint     run ruff and mypy'
	@echo 'make docs     build the documentation as a web site, in site/'
	@echo 'make clean    remove everything that these have made'

demo: .venv/.complete
	@.venv/bin/python -m orchestrator.cli demo

test: .venv/.complete
	.venv/bin/python -m pytest -m "not slow" $(or $(ARGS),tests/unit)

test-all: .venv/.complete
	.venv/bin/python -m pytest $(ARGS)

# What a user gets who installs today, without constraints.txt. Not kept: what is the newest changes from day to day.
test-newest: .venv/.complete
	@rm -rf .venv-newest
	@$(call inheriting_venv,.venv/bin/python,.venv-newest)
	@.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager --editable .
	@.venv-newest/bin/python -m pip list --disable-pip-version-check | grep -iE '^(fabric|paramiko|invoke|cryptography|click|rich|pyyaml|clustershell) '
	.venv-newest/bin/python -m pytest $(or $(ARGS),tests/unit $(LOGINS))

chaos: .venv/.complete
	CHAOS=full .venv/bin/python -m pytest tests/chaos tests/gpu tests/node/test_restarts.py tests/node/test_grace.py --timeout 900 $(ARGS)
	CHAOS=full .venv/bin/python -m pytest -m full tests/unit tests/node tests/e2e --timeout 900 $(ARGS)
	DDP_ORCH_STOP_MOMENTS=500 .venv/bin/python -m pytest tests/node/test_stop_moments.py -s --timeout 3600
	.venv/bin/python tests/chaos/sequences.py --count 200 --write chaos_sequences
	.venv/bin/python tests/chaos/sequences.py --count 100 --elect --write chaos_sequences_elect
	.venv/bin/python tests/chaos/sequences.py --count 20 --torchrun --labs 1 --write chaos_sequences_torchrun

# Sets nothing up: a machine with a GPU may have no network. Its own Python does, with the packages that it has.
gpu:
	@$(firstword $(wildcard .venv/bin/python) $(PYTHON)) benchmarks/gpu $(ARGS)

breakages: .venv/.complete
	DDP_ORCH_ALL_BREAKAGES=1 .venv/bin/python -m pytest tests/e2e/test_check.py tests/e2e/test_broken_hosts.py $(ARGS)

# Packages of others, which no test needs, in a venv of their own.
examples: .venv/.complete
	@[ -x .venv-examples/bin/ddp-orch ] || { $(call inheriting_venv,.venv/bin/python,.venv-examples) && \
	  .venv-examples/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .; }
	.venv-examples/bin/python tests/programs/try_programs.py --install $(PROGRAMS)

fuzz: .venv/.complete
	DDP_ORCH_FUZZ=$(EXAMPLES) .venv/bin/python -m pytest tests/unit/test_fuzz.py tests/node/test_hostile_answers.py --timeout 7200 --durations 3 $(ARGS)

lint: .venv/.complete
	.venv/bin/python -m ruff check
	.venv/bin/python -m ruff format --check
	.venv/bin/python -m mypy

# Builds with warnings as errors: a link to a page or heading that does not exist is one.
docs: .venv/.complete
	@[ -x .venv-docs/bin/mkdocs ] || { $(call inheriting_venv,.venv/bin/python,.venv-docs) && \
	  .venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt mkdocs-material; }
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --quiet --strict
	@echo 'open site/index.html'

clean:
	rm -rf .venv .venv-newest .venv-docs .venv-examples site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# editable_mode=compat: a path in the place of an import hook, which costs each start of a Python 30 ms. The tests start
# many thousands.
# The stamp is the last thing to be made: a set-up that was interrupted, or is older than the constraints, begins anew.
.venv/.complete: constraints.txt
	@rm -rf .venv
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed: make PYTHON=/path/to/python3" if sys.version_info < (3, 10) else 0)'
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then $(call inheriting_venv,$(PYTHON),.venv); else $(PYTHON) -m venv .venv; fi
	@echo 'installing into .venv ...'
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --config-settings editable_mode=compat --editable '.[test]'
	@.venv/bin/python -c 'import torch' 2>/dev/null || { echo $(TORCH_HINT); $(PIP) torch; }
	@touch $@

# A venv made by a Python in a venv sees the packages of the system below both, and not those of the other venv.
define inheriting_venv # PYTHON FOLDER
$(1) -m venv --system-site-packages $(2) && \
$(1) -c 'import sys; print(*(path for path in sys.path if path.endswith("-packages") and sys.prefix != sys.base_prefix), sep="\n")' \
  > "$$($(2)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
endef

TORCH_HINT := 'installing torch; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu makes it a small one, without CUDA'
