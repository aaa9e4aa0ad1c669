# Thin: each target is what you could type yourself. `make tune` and `make test` set up what they need.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The CPU engine where there is no NVIDIA GPU, the CUDA engine where there is one.
ENGINE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
STUDY  ?= studies/quickstart.yaml

.PHONY: setup tune test lint bench clean

setup: $(VENV)/.ready-$(ENGINE)

$(VENV)/.ready-cpu $(VENV)/.ready-gpu: pyproject.toml setup.sh
	./setup.sh "$(PYTHON)" "$(VENV)" "$(ENGINE)"
	touch $@

tune: setup
	$(BIN)/tuner run $(STUDY)

# Engines and Ray need the machine for themselves; the rest runs in two processes.
test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not vllm and not ray"
	$(BIN)/python -m pytest -m "vllm or ray"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
