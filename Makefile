# Two commands: `make run` starts mailsvc to try it, `make test` runs its tests. Both need nothing but Python 3.11 or newer.
#   PYTHON=python3.12 make run     with this Python        VENV=/tmp/venv make test     in that environment
#   CONFIG=etc/mine.toml make run  with these settings     ARGS="-k dkim" make test     with these options for pytest

VENV   ?= .venv
CONFIG ?= etc/development.toml
ARGS   ?=
PYTHON ?=
MARKS  ?= contract
FULL   ?= hostile chaos million webhooks bench

# What browsers get of the npm packages of the dashboard; the last of these files to be made.
PACKAGES = mailsvc/dashboard/static/packages/htmx.min.js

.PHONY: run test test-slow lint bench chaos full ci-contract wheel
.SILENT:
.NOTPARALLEL:

run: $(VENV)/.installed $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/twistd" --nodaemon --pidfile= mailsvc --config "$(CONFIG)"

test: $(VENV)/.installed-test $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/python" -m pytest -m "not slow" $(ARGS)

# Tests with processes that are killed, power cuts, wrong clocks and hostile inputs, which take longer than all others together.
test-slow: $(VENV)/.installed-test $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/python" -m pytest -m slow $(ARGS)

lint: $(VENV)/.installed-dev
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/ruff" format --check .
	"$(VENV)/bin/mypy"
	PYTHONPATH=. "$(VENV)/bin/lint-imports"

bench: $(VENV)/.installed-test $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/python" -m tests.bench $(ARGS)

# Faults on purpose, about twenty minutes; ARGS="--kills 200 --emails 100000" for a long run. Figures: docs/reliability.md.
chaos: $(VENV)/.installed-test $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/python" -m tests.chaos $(ARGS)

# All that is too long for CI, some hours: hostile inputs at 40 MB, the fault experiments in their long form, a million emails, the long
# benches. Every part runs, whatever became of the others. FULL="hostile chaos": only these parts.
full: $(VENV)/.installed-test $(PACKAGES)
	failed=; for part in $(FULL); do \
	    case $$part in \
	        hostile) set -- tests.hostile ;; \
	        chaos) set -- tests.chaos --kills 200 --emails 100000 ;; \
	        million) set -- tests.bench.million ;; \
	        webhooks) set -- tests.bench.webhooks --rounds 5 ;; \
	        bench) set -- tests.bench --rounds 5 --parts bodies,turns,memory,growth ;; \
	        *) echo "There is no part $$part." >&2; exit 2 ;; \
	    esac; \
	    echo "=== $$part"; PYTHONPATH=. "$(VENV)/bin/python" -m "$$@" || failed="$$failed $$part"; \
	done; \
	echo "failed:$${failed:- none}"; [ -z "$$failed" ]

# What has to hold on every Python that is supported; a part of `make test`. MARKS="contract and postgres": on every Postgres.
ci-contract: $(VENV)/.installed-test $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/python" -m pytest -m "$(MARKS)" $(ARGS)

# For servers, into dist/.
wheel: $(VENV)/.installed $(PACKAGES)
	etc/wheel "$(VENV)/bin/python" dist

# One stamp for each set of packages; a changed requirement installs again, a second run does not look.
$(VENV)/.installed: setup.cfg requirements-dev.lock | $(VENV)/bin/python
	etc/install "$(VENV)" embedded
	touch "$@"

$(VENV)/.installed-test: setup.cfg requirements-dev.lock tests/end_to_end/clients/node/package-lock.json | $(VENV)/bin/python
	etc/install "$(VENV)" embedded,test
	etc/node-libraries "$(VENV)"
	touch "$(VENV)/.installed" "$@"

$(VENV)/.installed-dev: setup.cfg requirements-dev.lock tests/end_to_end/clients/node/package-lock.json | $(VENV)/bin/python
	etc/install "$(VENV)" embedded,test,dev
	etc/node-libraries "$(VENV)"
	touch "$(VENV)/.installed" "$(VENV)/.installed-test" "$@"

$(PACKAGES): mailsvc/dashboard/package.json mailsvc/dashboard/package-lock.json | $(VENV)/bin/python
	etc/packages "$(VENV)"

$(VENV)/bin/python:
	etc/environment "$(VENV)" $(PYTHON)
