# `make help` lists the targets. All that is set up lives in .venv and .build; `make clean` takes both away.

VENV := .venv
BIN := $(VENV)/bin
# Stamps: the environment is made again when pyproject.toml changes, the wheel when what it packs changes.
ENVIRONMENT := $(VENV)/.environment-stamp
WHEEL := $(VENV)/.wheel-stamp
# The directories too: a file that went away changes nothing else.
PACKED := pyproject.toml README.md LICENSE pyspark_pgonce.py $(wildcard docs/*.md docs/*.1) \
	$(shell find sink offsets_store pgonce -name __pycache__ -prune -o -print)

# What runs is the installed wheel, in this process and in Spark's Python workers: without PYTHONSAFEPATH they would put
# the working directory first on their path, and so import the source tree.
export PYTHONSAFEPATH := 1
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# The version that `make connect` runs with, and its environment's Python.
PYSPARK = 4.3
CONNECT = .build/connect/$(PYSPARK)/bin/python
# Where the tests keep their files: a test's own database is hundreds of small ones, which a disk takes 0.1 s to create
# and memory 0.01 s. Only where there is plenty of it.
IN_MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8000000 {print "/dev/shm"}')
# A test's module is compiled with its assertions rewritten, which takes 20 s of CPU for all: once, not in each process.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HATCH_QUIET := 1

# The first Python that is new enough and can make environments; name another with `make PYTHON=...`.
PYTHON = $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	&& command -v $$python && break; done)

ifneq ($(shell command -v uv),)
CREATE = uv venv --quiet --allow-existing --python "$(or $(PYTHON),>=3.10)" $(VENV)
INSTALL = uv pip install --quiet --python $(BIN)/python
INSTALLER = true
else
CREATE = $(if $(PYTHON),$(PYTHON) -m venv $(VENV),\
	{ echo "Python 3.10 or newer is missing: install python3 and python3-venv, or uv." >&2; exit 1; })
INSTALL = $(BIN)/python -m pip install --quiet
# An environment that uv made has no pip; and dependency groups came with pip 25.1.
INSTALLER = { $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null; } \
	&& $(INSTALL) --upgrade 'pip>=25.1'
endif
BUILD = rm -rf .build/wheel && $(BIN)/python -m hatchling build -t wheel -d .build/wheel

# What a release is checked with, next to what the tests have.
TOOLS := .build/tools/.stamp
TOOLS_BIN := .build/tools/bin
UV := $(TOOLS_BIN)/uv
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
EXTRAS := kafka,otel,registry,serve
# The files of a release have the time of its commit.
COMMITTED_AT = $(shell git log -1 --format=%ct 2>/dev/null)

# Where `make lint` looks for the phrases of .ci/phrases. Decision records that are settled stay as they are.
PROSE := sink offsets_store pgonce docs website README.md ARCHITECTURE.md CONTRIBUTING.md

# Processes take the tests one by one, in the order of tests/support/fixtures/order.py: two for `make test`, and three for
# the others, whose tests wait most of their time. If one of them crashes, the run ends: xdist can wait for ever for the
# process that it starts in its place.
TOGETHER = -n $(if $(filter test,$@),2,3) --dist loadscope --no-loadscope-reorder --max-worker-restart 0 --durations 10

.DELETE_ON_ERROR:
.PHONY: java $(shell awk -F: '/^[a-z-]+:.*## / {print $$1}' Makefile)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

setup: java $(WHEEL) ## make .venv and install the wheel there; the other targets do so by themselves

demo: setup ## kill and restart a streaming query, and count its rows; KAFKA=1 reads from a real Kafka; REAL_TIME=1 shows latency
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/examples/demo $(BIN)/python examples/demo/main.py $(if $(KAFKA),--kafka) \
	$(if $(REAL_TIME),--real-time)

test test-all test-long: export TMPDIR := $(or $(IN_MEMORY),$(TMPDIR))

test: setup ## the whole guarantee in small; ARGS="tests/sink -k upsert" runs what it names
	$(BIN)/pytest $(if $(ARGS),$(ARGS),$(TOGETHER) -m "not thorough and not long" --junitxml .build/test.xml)

test-all: setup ## the tests that CI runs as well
	$(BIN)/pytest $(TOGETHER) -m "thorough and not long" --junitxml .build/test-all.xml

test-long: setup ## the tests that take too long for test-all; ARGS=... as above
	$(BIN)/pytest $(if $(ARGS),$(ARGS),$(TOGETHER)) -m long --junitxml .build/test-long.xml

matrix: setup ## the conformance suite on each PySpark, Postgres and Python; ONLY="pyspark=3.5 python=3.10", SUITE=short, see CONTRIBUTING.md
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/tests $(BIN)/python tests/matrix/run.py $(if $(ONLY),--only "$(ONLY)") \
	$(if $(SUITE),--suite $(SUITE))

connect: setup ## what docs/clusters.md says of Spark Connect, with another PySpark: PYSPARK=4.1; ARGS="-k killed" runs what it names
	test -x $(CONNECT) || $(BIN)/python -m venv .build/connect/$(PYSPARK)
	$(CONNECT) -m pip install --quiet --upgrade 'pip>=25.1'
	$(CONNECT) -m pip install --quiet --group test 'pyspark[connect]==$(PYSPARK).*' .build/wheel/*.whl
	$(CONNECT) -m pip install --quiet --no-deps --force-reinstall .build/wheel/*.whl
	PYSPARK_PYTHON=$(CURDIR)/$(CONNECT) PYSPARK_DRIVER_PYTHON=$(CURDIR)/$(CONNECT) $(CONNECT) -m pytest \
	$(or $(ARGS),tests/guarantee/test_connect.py tests/guarantee/test_connect_refused.py tests/guarantee/test_connect_conformance.py)

chaos: setup ## strike running queries by seed and count lost and doubled rows; N=1000, SEED=..., ONLY=real-time, see CONTRIBUTING.md
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/tests $(BIN)/python tests/chaos/run.py --faults $(or $(N),40) \
	$(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND)) $(if $(FAULT),--fault "$(FAULT)") \
	$(if $(ONLY),--only $(ONLY)) $(if $(RESUME),--resume) $(if $(TABLE),--table) $(if $(REPORT),--report $(REPORT))

mutants: setup ## break the product in each way of tests/mutants/mutants.toml, and see which proof notices; ONLY=..., PROOF=... choose
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/tests $(BIN)/python tests/mutants/run.py $(if $(ONLY),--only "$(ONLY)") \
	$(if $(PROOF),--proof "$(PROOF)")

trial: setup ## the same faults for what people use today, hours; FAMILY=spark, FAULT=freeze, LANES=5, ROUNDS=4, TABLE=1, see docs/trial.md
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/tests:$(CURDIR)/benchmarks $(BIN)/python tests/trial/peers/run.py \
	$(if $(FAMILY),--family $(FAMILY)) $(if $(FAULT),--fault $(FAULT)) $(if $(LANES),--lanes $(LANES)) \
	$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(TABLE),--table)

RELEASE = PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/tests $(BIN)/python tests/release/run.py

release-check: setup ## all that a release needs and that takes minutes; it lists what takes hours
	@failed=0; PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/tests $(BIN)/python tests/chaos/run.py --check || failed=1; \
	for one in release-quick package release-files workflows sbom conda; do $(MAKE) --no-print-directory $$one || failed=1; done; \
	$(RELEASE) long || failed=1; exit $$failed

release-quick: setup ## do versions agree, is every public change in CHANGELOG.md, are licences allowed, has nothing grown too large?
	@$(RELEASE) check

release-tag: setup ## is the tag at HEAD signed, by a key of .github/allowed_signers, and of this version? TAG=v0.1.0
	@$(RELEASE) tag $(TAG)

release-files: export SOURCE_DATE_EPOCH := $(COMMITTED_AT)
release-files: setup ## does HEAD give the files in dist/, byte for byte, when it is built again in another folder?
	@$(RELEASE) files

release-notes: setup ## what CHANGELOG.md says of this version, or of VERSION=0.1.0
	@$(RELEASE) notes $(VERSION)

licences: setup ## the licence of each package that pgonce and its extras bring
	@$(RELEASE) licences

sbom: $(TOOLS) setup ## write .build/pgonce.cdx.json: what pgonce and its extras bring, but for Spark (CycloneDX)
	@$(UV) venv --quiet --clear --python $(BIN)/python .build/sbom
	@$(UV) pip install --quiet --python .build/sbom/bin/python "$$(ls .build/wheel/*.whl)[$(EXTRAS)]"
	@$(TOOLS_BIN)/cyclonedx-py environment .build/sbom/bin/python --pyproject pyproject.toml --mc-type library --output-reproducible \
	--output-format JSON --output-file .build/pgonce.cdx.json

conda: $(TOOLS) setup ## build the conda package from dist/, and run its tests; CHANNEL=conda-forge takes real packages of the others
	@$(UV) venv --quiet --clear --seed --python $(BIN)/python .build/conda/python
	@$(UV) pip install --quiet --python .build/conda/python/bin/python hatchling --requirements pyproject.toml
	@rm -rf .build/conda/built .build/conda/channel
	@$(TOOLS_BIN)/python tests/release/conda/build.py .build/conda \
	$(if $(CHANNEL),--channel $(CHANNEL),--python .build/conda/python/bin/python)

workflows: $(TOOLS) ## actionlint and zizmor on what is in .github
	@test -x .build/bin/actionlint || GOBIN=$(CURDIR)/.build/bin go install $(ACTIONLINT)
	@.build/bin/actionlint
	@$(TOOLS_BIN)/zizmor --quiet --offline --strict-collection --config .github/zizmor.yml .github/workflows

# Whether versions work together shows in encoding, the ledger, and a query that is started again.
SHORT_TESTS = tests/sink/encoding tests/offsets_store/ledger \
	"tests/guarantee/test_conformance.py::TestRestarts::test_goes_on_where_it_ended[inline]"
short-tests = PYSPARK_PYTHON=$(CURDIR)/$(1)/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/$(1)/bin/python \
	$(1)/bin/python -m pytest -q $(or $(ARGS),$(SHORT_TESTS))

lowest: $(TOOLS) setup ## tests with the lowest versions that pyproject.toml allows, but for PySpark, which make matrix has
	mkdir -p .build/lowest
	$(UV) pip compile --quiet --all-extras --group test --resolution lowest-direct --python $(BIN)/python pyproject.toml \
	--constraints tests/release/lowest.txt --output-file .build/lowest/requirements.txt
	$(UV) venv --quiet --clear --python $(BIN)/python .build/lowest/venv
	$(UV) pip install --quiet --python .build/lowest/venv/bin/python \
	--requirements .build/lowest/requirements.txt .build/wheel/*.whl
	$(call short-tests,.build/lowest/venv)

newest: $(TOOLS) setup ## the same tests with the newest versions that there are today
	$(UV) venv --quiet --clear --python $(BIN)/python .build/newest
	$(UV) pip install --quiet --refresh --python .build/newest/bin/python --group test .build/wheel/*.whl
	$(call short-tests,.build/newest)

test-dist: $(TOOLS) setup ## the same tests with the wheel that is in dist/
	$(UV) venv --quiet --clear --python $(BIN)/python .build/test-dist
	$(UV) pip install --quiet --python .build/test-dist/bin/python --group test dist/*.whl
	$(call short-tests,.build/test-dist)

lint: setup ## ruff, the format check, mypy, which folder may import which, how large each room is, and plain English
	@failed=0; for tool in "ruff check" "ruff format --check" mypy "lint-imports --no-logo --no-cache" \
	"python -m release.core_imports" "python -m release.sizes"; \
	do PYTHONPATH=$(CURDIR)/tests $(BIN)/$$tool || failed=1; done; exit $$failed
	@! grep -Ev '^(#|$$)' .ci/phrases | grep -rniE -f - --include='*.py' --include='*.md' --include='*.sql' --exclude-dir=archive \
	$(PROSE) \
	|| { echo 'These phrases have to be read twice: .ci/phrases says how to write instead.' >&2; exit 1; }

sizes: setup ## lower the numbers of tests/repository/sizes.toml to what there is
	@PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m release.sizes --lower

package: export SOURCE_DATE_EPOCH := $(COMMITTED_AT)
package: setup ## build sdist and wheel into dist/, and check what an index would show of them
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

docs: setup ## write what is made from the code (options, manual page, list of what is public) and from texts (pictures)
	@PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m support.options_page
	@PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m support.manual_page
	@PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m support.tables_page
	@PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m support.public_interface
	@$(BIN)/python website/draw.py

site: setup ## build the documentation's site into .build/site, and check its links
	@PYTHONPATH=$(CURDIR)/website:$(CURDIR)/tests $(BIN)/python -m build_site .build/site

check: lint test ## lint, then test

nightly: test test-all test-long ## all that CI runs only in short: every test, the benchmarks, and 200 faults
	$(MAKE) bench bench-bad-rows bench-changes bench-routes chaos N=200

model: setup ## search the models of the commit in every order of events (Spin), and without each of their guards
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/tests $(BIN)/python tests/trial/model.py

fuzz: setup ## look for records that the decoder takes wrongly; SECONDS=3600
	@$(INSTALL) atheris && $(BIN)/python tests/support/fuzz_json_records.py -max_total_time=$(or $(SECONDS),60) \
	-max_len=400 -print_final_stats=1

bench: setup ## compare with Spark's JDBC writer and with a sink that does nothing; SMALL=1 for a quick look
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/run.py $(if $(SMALL),--small)

picture: setup ## draw docs/benchmarks.png from the newest run of `make bench`
	@$(INSTALL) --group bench
	@PYTHONPATH=$(CURDIR)/benchmarks $(BIN)/python benchmarks/picture.py

soak: setup ## N=10000 small batches of each way in, one driver after the other: what grows? WAYS=inline,staged runs some
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/soak.py --batches $(or $(N),10000) \
	$(if $(WAYS),--ways $(WAYS))

soak-epochs: setup ## N=10000 epochs of a continuous query: what grows?
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/soak_epochs.py --epochs $(or $(N),10000)

bench-diff: setup ## what a change did to each figure, in turns with BASE=<commit>; SMALL=1 for a quick look, LOADS=upserts for some
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/diff.py $(if $(BASE),--base $(BASE)) \
	$(if $(SMALL),--small) $(if $(LOADS),--loads $(LOADS))

bench-async: setup ## trigger times with and without asynchronous progress tracking, from Kafka
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/async_triggers.py

bench-changes: setup ## changes with deletes from Kafka, against Debezium's JDBC sink; SMALL=1 for a quick look
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/changes.py $(if $(SMALL),--small)

bench-cluster: setup ## rows a second with 1, 2 and 4 executors of one core, on a real cluster; SMALL=1 for a quick look
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/cluster.py $(if $(SMALL),--small) $(if $(DECODING),--decoding)

bench-kafka: setup ## from Kafka, 1,000,000 JSON records a batch, against Spark JDBC, Debezium, Flink XA, a consumer; NESTED=1
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/kafka_to_postgres.py $(if $(NESTED),--nested)

bench-schemas: setup ## records of Avro and Protobuf from Kafka, decoded in the sink, against Spark's own functions
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/kafka_schemas.py

bench-latency: setup ## from the producer to a visible row, for each trigger and asynchronous setting, and in real time; PART=real-time
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/latency.py \
	$(if $(PART),--part $(PART)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-drain: setup ## rows a second from a full topic: real time, continuous, micro-batches
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/drain.py

bench-ledger: setup ## a ledger of 1,000,000 batches against an empty one
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/ledger_size.py

bench-first: setup ## from start() to the first commit, each time in a new driver; SMALL=1 for a quick look
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/first_batch.py $(if $(SMALL),--small)

bench-upserts: setup ## statements that upsert gathered rows, in Postgres alone
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/upsert_statements.py

bench-encoders: setup ## what can turn Arrow's columns into a COPY, in Postgres alone
	@$(INSTALL) --group bench
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/encoders.py

bench-newer: setup ## statements that apply changes of which only newer ones count, in Postgres alone
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/newer_statements.py

bench-serve: setup ## what `pgonce serve` costs Postgres, and how soon its page is there
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/tests:$(CURDIR)/benchmarks $(BIN)/python benchmarks/serve.py

bench-bad-rows: setup ## commits with dead letters; PART=many: one bad row in a thousand, PART=constraints: each kind
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/bad_rows.py $(if $(PART),--part $(PART))

bench-routes: setup ## one batch of 100,000 rows into 100 tables, against one table and 100 batches, without Spark
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/routes.py

bench-scale: setup ## what grows with what; PART=tasks runs one: rates, tasks, partitions, offsets, writers, columns, rows, model
	@PYTHONPATH=$(CURDIR)/testbed:$(CURDIR)/benchmarks $(BIN)/python benchmarks/scale.py \
	$(if $(PART),--part $(PART)) $(SCALE)

clean: ## remove .venv, .build and caches
	rm -rf $(VENV) .build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 \
	| awk -F '[".]' '/version/ {found = $$2 + 0 >= 17} END {exit !found}' \
	|| { echo "Java 17 or newer is missing: install a JDK (openjdk-17), or set JAVA_HOME to one." >&2; exit 1; }

$(ENVIRONMENT): pyproject.toml
	@echo "Setting up $(VENV) (the first time takes a minute or two) ..."
	@test -x $(BIN)/python || $(CREATE)
	@$(INSTALLER)
	@$(INSTALL) hatchling
	@$(BUILD)
	@$(INSTALL) --group test --group check --group site .build/wheel/*.whl
	@touch $@

$(WHEEL): $(ENVIRONMENT) $(PACKED)
	@$(BUILD)
	@$(INSTALL) --no-deps --force-reinstall .build/wheel/*.whl
	@touch $@

$(TOOLS): pyproject.toml | $(ENVIRONMENT)
	@$(BIN)/python -m venv .build/tools
	@$(TOOLS_BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(TOOLS_BIN)/python -m pip install --quiet --group release
	@touch $@
