# Each target sets up what it needs by itself, in .venv; only CPython 3.10 or newer is expected.
# A stamp file per set of packages makes the second run quick: it is renewed with pyproject.toml.

PYTHON ?= python3
PYTEST_ARGS ?=
DEMO_ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
# Two installs into one environment at the same time would spoil it.
.NOTPARALLEL:
.PHONY: help demo test test-learning test-ray test-ray-quick test-upstream nightly lint types check \
    format bench bench-quick bench-upstream clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.installed-demo ## drive the embedded environment on all cores and draw a contact sheet
	$(VENV)/bin/swm-async demo $(DEMO_ARGS)

# Two at a time, since most tests wait for processes.
test: $(VENV)/.installed-test ## run the tests (PYTEST_ARGS="-k seed -x" chooses)
	$(RUN) -m pytest $(or $(PYTEST_ARGS),--numprocesses 2)

test-learning: .venv-learning/.installed ## run what needs torch or Stable-Baselines3, the examples too
	.venv-learning/bin/python -m pytest tests/test_sb3.py tests/test_examples.py tests/test_vector.py \
	    tests/test_infos_torch.py tests/test_readme.py -rs $(PYTEST_ARGS)

test-upstream: .venv-upstream/.installed ## run stable-worldmodel's own code on this pool, and say what is left out
	.venv-upstream/bin/python -m pytest tests/test_upstream.py -rs \
	    --override-ini=faulthandler_timeout=800 $(PYTEST_ARGS)

test-ray: test-ray-quick ## run pools on Ray: its own tests, then those that every backend must pass
	SWM_ASYNC_TEST_BACKEND=ray .venv-ray/bin/python -m pytest tests/test_pool_contract.py \
	    tests/test_pool_property.py tests/test_infos.py tests/test_infos_property.py \
	    tests/test_handles.py tests/test_restarts.py tests/test_overlap.py \
	    tests/test_faults_failures.py tests/test_faults_masks.py tests/test_worker_policy.py \
	    -rs $(PYTEST_ARGS)

test-ray-quick: .venv-ray/.installed ## run the tests of Ray's own alone
	.venv-ray/bin/python -m pytest tests/test_ray.py tests/test_ray_cluster.py -rs $(PYTEST_ARGS)

# The limits of pytest's settings are meant for one test of the suite, not for this number of examples.
nightly: $(VENV)/.installed-test ## run the property tests over many more examples
	SWM_ASYNC_EXAMPLES=2000 $(RUN) -m pytest tests/test_infos_property.py tests/test_vector_infos.py \
	    --timeout=7200 --override-ini=faulthandler_timeout=7000 $(PYTEST_ARGS)

check: lint types ## lint and types

lint: $(VENV)/.installed-test ## check format and lint
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .

types: $(VENV)/.installed-test ## check the types
	$(RUN) -m mypy

format: $(VENV)/.installed-test ## format, and mend what the linter can mend
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

bench: .venv-bench/.installed ## measure everything and fill in the pages, under 20 minutes
	.venv-bench/bin/python benchmarks/all.py

bench-quick: $(VENV)/.installed-demo ## the same roughly, under 2 minutes, without other libraries
	$(RUN) benchmarks/all.py --quick

bench-upstream: .venv-upstream/.installed ## measure against stable-worldmodel's own pool
	.venv-upstream/bin/python benchmarks/upstream.py

clean: ## remove the virtual environments and everything else that these targets leave
	rm -rf $(VENV) .venv-bench .venv-learning .venv-ray .venv-upstream build dist
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# A stamp and not the interpreter's file says that it is complete: that file is there already when
# the creation of the environment fails halfway. pip 21.3 is the first that installs editable by this
# project's build backend; the first Python 3.10 came with an older one.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and \
	    f"Python 3.10 or newer is needed, {sys.executable} is {sys.version.split()[0]}: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) 'pip>=21.3'
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.created pyproject.toml
	$(INSTALL) --editable '.[pixels,plot]'
	@touch $@

# An environment of its own, for torch and what else it needs take a gigabyte and more. torchvision is
# made for one release of torch. The last line are extras of it that its environments and formats
# need; its extra `env` would bring many more.
.venv-upstream/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-upstream
	.venv-upstream/bin/python -m pip install --quiet --disable-pip-version-check \
	    torch==2.13.0 torchvision==0.28.0 stable-worldmodel==0.1.1 --editable '.[test,video,hdf5]' \
	    decord hdf5plugin opencv-python-headless pygame pymunk shapely
	@touch $@

# The same goes for this one. Gymnasium's own RecordVideo needs moviepy, NumpyToTorch the last.
.venv-learning/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-learning
	.venv-learning/bin/python -m pip install --quiet --disable-pip-version-check \
	    torch==2.13.0 --editable '.[test,sb3]' moviepy array-api-compat
	@touch $@

# Another one, for the libraries to compare with, one by one: a row whose library cannot be installed
# is skipped, and says so.
.venv-bench/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet 'pip>=21.3'
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check \
	    --editable '.[pixels,plot]'
	for peer in stable-baselines3 envpool tianshou; do \
	    .venv-bench/bin/python -m pip install --quiet --disable-pip-version-check $$peer || \
	    echo "$$peer cannot be installed: the benchmarks leave it out"; done
	@touch $@

# And for this one.
.venv-ray/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test,ray]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.created pyproject.toml
	$(INSTALL) --editable '.[test,dev]'
	@touch $@
