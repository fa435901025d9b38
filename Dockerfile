# Builds two images: `docker build --target coordinator .`, and `docker build --target spark .` with the client.
# (The target `flights` adds the demo to `spark`, for docker-compose.yml.) The files in deploy/locks pin all Python
# packages by version and hash.
ARG PYTHON_IMAGE=docker.io/library/python:3.13.9-slim-bookworm

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY deploy/locks/build.lock deploy/locks/
RUN apt-get update \
 && apt-get install --yes --no-install-recommends "binutils=2.*" "zip=3.*" \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes --no-deps --requirement deploy/locks/build.lock


FROM build AS coordinator-build
COPY deploy/locks/coordinator.lock deploy/locks/
RUN /opt/build/bin/pip wheel --require-hashes --no-deps --no-build-isolation --wheel-dir /wheels \
      --requirement deploy/locks/coordinator.lock
COPY service service
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels ./service \
 && python3 -m venv --without-pip /opt/tidegate \
 && /opt/build/bin/pip --python /opt/tidegate/bin/python install --no-deps --no-index /wheels/*.whl \
 && find /opt/tidegate -name '*.so' -exec strip --strip-debug {} +


# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS coordinator
ARG UID=10001
RUN groupadd --gid "${UID}" tidegate \
 && useradd --uid "${UID}" --gid "${UID}" --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin tidegate \
 && install --directory --owner "${UID}" --group "${UID}" --mode 0700 /var/lib/tidegate \
      /run/tidegate /secrets/valkey /secrets/coordinator /secrets/spark /secrets/notifier /secrets/observe /secrets/grafana /secrets/people
COPY --from=coordinator-build /opt/tidegate /opt/tidegate
# Only an embedded Valkey writes files by default, in /var/lib/tidegate. The folders in /secrets are empty: Docker copies
# their owner into the new volumes of docker-compose.yml, so that the service `secrets` needs no root. The folder that the
# other services mount, /run/tidegate, must stay empty: Docker copies its files into a new volume, and fails if two
# containers that it creates at the same time copy the same file.
ENV PATH=/opt/tidegate/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TIDEGATE_HOST=0.0.0.0 \
    TIDEGATE_PORT=8000 \
    TIDEGATE_DATA_DIR=/var/lib/tidegate \
    TIDEGATE_LOG_FORMAT=json
WORKDIR /var/lib/tidegate
USER ${UID}:${UID}
EXPOSE 8000
# On SIGTERM, the coordinator finishes open calls and answers waiting clients, which reconnect to another replica. It
# exits within about ten seconds.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["tidegate"]
CMD ["serve"]


FROM build AS spark-build
COPY deploy/locks/spark.lock deploy/locks/
RUN /opt/build/bin/pip wheel --require-hashes --no-deps --no-build-isolation --wheel-dir /wheels \
      --requirement deploy/locks/spark.lock
COPY spark_client spark_client
# The tests of packages, debug symbols, and RocksDB's libraries for other platforms are 150 MB that no job uses.
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels ./spark_client \
 && python3 -m venv --without-pip /opt/spark-python \
 && /opt/build/bin/pip --python /opt/spark-python/bin/python install --no-deps --no-index /wheels/*.whl \
 && find /opt/spark-python -type d -name tests -prune -exec rm -r {} + \
 && find /opt/spark-python -path '*/zstandard/*.so' -exec strip --strip-debug {} + \
 && zip --quiet --delete /opt/spark-python/lib/python3*/site-packages/pyspark/jars/rocksdbjni-*.jar \
      '*.dll' '*.jnilib' '*-musl.so' '*-linux32.so' '*-ppc64le.so' '*-riscv64.so' '*-s390x.so'


# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS java-build
ARG JAVA=17
RUN apt-get update \
 && apt-get install --yes --no-install-recommends "openjdk-${JAVA}-jdk-headless=${JAVA}.*" \
 && rm -rf /var/lib/apt/lists/*
# A Java runtime with all modules, except those that compile and pack programs. The archive of classes (CDS) halves the time in
# which a JVM starts.
RUN jlink --no-header-files --no-man-pages --compress=2 --output /opt/java --add-modules "java.se,\
jdk.accessibility,jdk.charsets,jdk.crypto.cryptoki,jdk.crypto.ec,jdk.dynalink,jdk.httpserver,jdk.incubator.vector,jdk.jcmd,\
jdk.jdwp.agent,jdk.jfr,jdk.localedata,jdk.management.agent,jdk.management.jfr,jdk.naming.dns,jdk.naming.rmi,jdk.net,\
jdk.nio.mapmode,jdk.sctp,jdk.security.auth,jdk.security.jgss,jdk.unsupported,jdk.xml.dom,jdk.zipfs" \
 && cp /etc/ssl/certs/java/cacerts /opt/java/lib/security/cacerts \
 && /opt/java/bin/java -Xshare:dump -XX:SharedClassListFile="$(dirname "$(readlink --canonicalize /usr/bin/jlink)")/../lib/classlist"


# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS spark
ARG UID=10001
# Spark's scripts run ps, which is in the package procps.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends "procps=*" \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid "${UID}" spark \
 && useradd --uid "${UID}" --gid "${UID}" --no-create-home --home-dir /var/lib/spark --shell /usr/sbin/nologin spark \
 && install --directory --owner "${UID}" --group "${UID}" --mode 0700 /var/lib/spark
COPY --from=java-build /opt/java /opt/java
COPY --from=spark-build /opt/spark-python /opt/spark-python
ENV PATH=/opt/spark-python/bin:/opt/java/bin:/usr/local/bin:/usr/bin:/bin \
    JAVA_HOME=/opt/java \
    PYSPARK_PYTHON=/opt/spark-python/bin/python3 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/spark
USER ${UID}:${UID}
# Typical commands: spark-class org.apache.spark.deploy.master.Master, spark-class ...worker.Worker, or spark-submit.
CMD ["pyspark", "--version"]


FROM build AS flights-build
COPY deploy/locks/flights.lock deploy/locks/
# The image `spark` has the other packages of the demo.
RUN /opt/build/bin/pip wheel --require-hashes --no-deps --no-build-isolation --wheel-dir /wheels \
      --requirement deploy/locks/flights.lock \
 && /opt/build/bin/pip install --no-deps --no-index --target /opt/flights /wheels/*.whl


# Spark's connector for Kafka, for the version of Spark in spark.lock.
FROM java-build AS connector-build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends "maven=3.*" \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY examples/flights/connector.xml examples/flights/connector.sha256 ./
RUN mvn --quiet --batch-mode --strict-checksums --file connector.xml dependency:copy-dependencies -DincludeScope=runtime \
      -DoutputDirectory=/opt/kafka/connector-4.3
WORKDIR /opt/kafka
RUN sha256sum --check --quiet /src/connector.sha256


FROM spark AS flights
COPY --from=flights-build /opt/flights /opt/flights
COPY --from=connector-build /opt/kafka /opt/kafka
COPY examples /opt/flights/examples
ENV PYTHONPATH=/opt/flights \
    DEMO_KAFKA_JARS=/opt/kafka
ARG UID=10001
# Docker copies this folder and its owner into a new volume.
USER 0:0
RUN install --directory --owner "${UID}" --group "${UID}" --mode 0700 /data
USER ${UID}:${UID}
