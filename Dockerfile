# Two images: `docker build --target coordinator .`, and `--target spark`, which has the client. (`flights` is `spark` with
# the demo, for docker-compose.yml.) What goes in beside Debian and Java is in deploy/locks, by version and hash.
ARG PYTHON_IMAGE=docker.io/library/python:3.13.9-slim-bookworm

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY deploy/locks/build.lock deploy/locks/
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes --no-deps --requirement deploy/locks/build.lock


FROM build AS coordinator-build
COPY deploy/locks/coordinator.lock deploy/locks/
RUN /opt/build/bin/pip wheel --require-hashes --no-deps --no-build-isolation --wheel-dir /wheels \
      --requirement deploy/locks/coordinator.lock
COPY service service
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels ./service \
 && python3 -m venv --without-pip /opt/tidegate \
 && /opt/build/bin/pip --python /opt/tidegate/bin/python install --no-deps --no-index /wheels/*.whl


# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS coordinator
ARG UID=10001
RUN groupadd --gid "${UID}" tidegate \
 && useradd --uid "${UID}" --gid "${UID}" --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin tidegate \
 && install --directory --owner "${UID}" --group "${UID}" --mode 0700 /var/lib/tidegate
COPY --from=coordinator-build /opt/tidegate /opt/tidegate
# Nothing is written outside of /var/lib/tidegate, and that only by an embedded Valkey.
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
# Calls under way are finished, those who wait are answered and come back to another: within ten seconds.
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
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels ./spark_client \
 && python3 -m venv --without-pip /opt/spark-python \
 && /opt/build/bin/pip --python /opt/spark-python/bin/python install --no-deps --no-index /wheels/*.whl


# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS spark
ARG UID=10001
ARG JAVA_VERSION=17.*
# ps is asked for by Spark's scripts.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends "openjdk-17-jre-headless=${JAVA_VERSION}" "procps=*" \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid "${UID}" spark \
 && useradd --uid "${UID}" --gid "${UID}" --no-create-home --home-dir /var/lib/spark --shell /usr/sbin/nologin spark \
 && install --directory --owner "${UID}" --group "${UID}" --mode 0700 /var/lib/spark
COPY --from=spark-build /opt/spark-python /opt/spark-python
ENV PATH=/opt/spark-python/bin:/usr/local/bin:/usr/bin:/bin \
    PYSPARK_PYTHON=/opt/spark-python/bin/python3 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/spark
USER ${UID}:${UID}
# spark-class org.apache.spark.deploy.master.Master, ...worker.Worker, or spark-submit
CMD ["pyspark", "--version"]


FROM spark-build AS flights-build
COPY deploy/locks/flights.lock deploy/locks/
RUN /opt/build/bin/pip wheel --require-hashes --no-deps --no-build-isolation --wheel-dir /more \
      --requirement deploy/locks/flights.lock \
 && /opt/build/bin/pip --python /opt/spark-python/bin/python install --no-deps --no-index /more/*.whl


FROM spark AS flights
COPY --from=flights-build /opt/spark-python /opt/spark-python
COPY examples /opt/flights/examples
ENV PYTHONPATH=/opt/flights
ARG UID=10001
# A volume begins as this folder: with its owner.
USER 0:0
RUN install --directory --owner "${UID}" --group "${UID}" --mode 0700 /data
USER ${UID}:${UID}
