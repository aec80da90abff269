# `make help` lists what there is. Nothing has to be installed first but python3 (3.11 or later), make and git.

VENV   ?= .venv
PYTHON_ENV = $(VENV)/bin/python
STAMP  := $(VENV)/.installed
# `make status`, `apply` and `rollback` mean the practice host unless you say (or deployer.toml says) otherwise.
ifeq ($(wildcard deployer.toml),)
export DEPLOYER_INVENTORY ?= inventories/rehearsal.toml
endif
ifneq ($(shell id -u),0)
SUDO  := sudo
endif

.DEFAULT_GOAL := help
.PHONY: help demo demo-sglang story test unit test-sglang check fuzz fuzz-systemd chaos bench-client bench-cli gate-study gate-real status apply rollback down format clean rehearsal-programs browser compiler

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1 ($$1 == "apply" ? " PROFILE=.." : ""), $$2}' $(MAKEFILE_LIST)
	@echo "  (ARGS=.. goes to the command, as in: make apply PROFILE=tp8 ARGS=--yes)"

demo: $(STAMP) rehearsal-programs ## the whole job on a practice host, no GPU needed
	@$(if $(SUDO),$(SUDO) -v)
	@$(PYTHON_ENV) -m deployer_rehearsal.demo

demo-sglang: $(STAMP) rehearsal-programs ## the same with the real SGLang, on the CPU (3 GB once)
	@$(if $(SUDO),$(SUDO) -v)
	@$(PYTHON_ENV) -m deployer_rehearsal.demo sglang

story: $(STAMP) rehearsal-programs ## five profiles one after the other, compared: story.html
	@$(if $(SUDO),$(SUDO) -v)
	@$(PYTHON_ENV) -m deployer_rehearsal.demo story

test: $(STAMP) rehearsal-programs browser compiler ## all tests, those on practice hosts included
	@tools/test.sh $(PYTHON_ENV) $(ARGS)

unit: $(STAMP) ## the unit tests alone: seconds, no root, no practice host
	@tools/unit.sh $(PYTHON_ENV) $(ARGS)

test-sglang: $(STAMP) rehearsal-programs ## tests with the real SGLang on the CPU (3 GB once, half an hour)
	@tools/test.sh $(PYTHON_ENV) -m sglang -n 2 --dist loadfile $(ARGS)

check: $(STAMP) rehearsal-programs browser compiler ## format, lint, types and all tests
	@status=0; \
	for step in "ruff format --check ." "ruff check ." "mypy"; do \
	    echo "$$step"; $(VENV)/bin/$$step || { status=1; failed="$$failed  [$$step]"; }; \
	done; \
	[ $$status = 0 ] || echo "failed before the tests:$$failed"; \
	tools/test.sh $(PYTHON_ENV) || status=1; \
	exit $$status

fuzz: $(STAMP) ## the properties on many more examples
	HYPOTHESIS_PROFILE=thorough $(PYTHON_ENV) -m pytest tests/unit --timeout 0 $(ARGS)

fuzz-systemd: $(STAMP) rehearsal-programs ## 10,000 argument lists, read back from a real systemd on a practice host
	@$(if $(SUDO),$(SUDO) -v)
	@$(if $(SUDO),$(SUDO) )env DEPLOYER_ARGUMENT_LISTS=10000 $(PYTHON_ENV) -m pytest -q -p no:cacheprovider \
	    tests/host/test_quoting_real.py -k any_argument_list $(ARGS)

chaos: $(STAMP) rehearsal-programs ## 150 disturbed changes on a practice host; the table goes to docs/reliability.md (an hour)
	@$(if $(SUDO),$(SUDO) -v)
	@$(if $(SUDO),$(SUDO) )$(PYTHON_ENV) -m tests.chaos --write docs/reliability.md $(ARGS)

bench-client: $(STAMP) compiler ## load clients side by side; the tables go to docs/performance.md (10 GB once, half an hour)
	@$(PYTHON_ENV) -m benchmarks.client --write docs/performance.md $(ARGS)

bench-cli: $(STAMP) rehearsal-programs ## the command line beside ssh, pyinfra and Ansible; the table goes to docs/performance.md
	@$(if $(SUDO),$(SUDO) -v)
	@$(if $(SUDO),$(SUDO) )$(PYTHON_ENV) -m benchmarks.cli --write docs/performance.md $(ARGS)

gate-study: $(STAMP) ## how often the gate errs, on simulated starts; the table goes to docs/gate.md
	@$(PYTHON_ENV) -m tools.gate_study --write docs/gate.md

gate-real: $(STAMP) rehearsal-programs ## the same on real starts of a practice host (ten minutes); table in docs/gate.md
	@$(if $(SUDO),$(SUDO) -v)
	@$(PYTHON_ENV) tools/gate_real.py --write docs/gate.md $(ARGS)

status: $(STAMP) ## what is live, and is it healthy
	@$(PYTHON_ENV) -m deployer status $(ARGS)

# The name reaches the shell as a variable, not as text of its command: whatever it is, it is one word.
unexport PROFILE
apply: export WANTED_PROFILE = $(value PROFILE)
apply: $(STAMP) ## put a profile live, or stay with the one that is
	@test -n "$$WANTED_PROFILE" || { echo "make apply needs a profile: make apply PROFILE=tp8"; exit 2; }
	@$(PYTHON_ENV) -m deployer apply $(ARGS) -- "$$WANTED_PROFILE"

rollback: $(STAMP) ## back to the profile that was live before
	@$(PYTHON_ENV) -m deployer rollback $(ARGS)

down: $(STAMP) ## remove the practice hosts of the demos
	@for set in default sglang story; do $(PYTHON_ENV) -m deployer rehearse down --name $$set || exit; done

format: $(STAMP) ## bring the code into its usual form
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean: ## remove the practice hosts of the demos, environment and caches
	@test ! -x $(PYTHON_ENV) || for set in default sglang story; do $(PYTHON_ENV) -m deployer rehearse down --name $$set; done
	rm -rf $(VENV) .venv-bench-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find deployer deployer_rehearsal tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@tools/setup.sh environment $(VENV)
	@touch $@

rehearsal-programs:
	@tools/setup.sh rehearsal

browser:
	@tools/setup.sh browser

compiler:
	@tools/setup.sh compiler
