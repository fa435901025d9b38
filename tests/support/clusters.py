"""Clusters of Spark, as plain processes on loopback."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.support.ports import free_port
from tests.support.runs import environment

SPARK = Path(pyspark.__file__).parent
START_S = 120


@contextmanager
def process(log: Path, command: list[str], started: str, **more: str) -> Iterator[re.Match[str]]:
    """Run a command until the end of the block, which starts when the command's log matches ``started``."""
    with open(log, "w") as output:
        running = subprocess.Popen(
            command, cwd=log.parent, env=environment(**more), stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while not (found := re.search(started, log.read_text())):
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield found
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """Start a master and two workers with one core each, on two host names; yield the master's address.

    There are two hosts because Spark does not run a task twice at once on one host.
    """
    spark_class = str(SPARK / "bin" / "spark-class")
    with ExitStack() as stack:
        master = stack.enter_context(
            process(
                directory / "master.log",
                [
                    spark_class,
                    "org.apache.spark.deploy.master.Master",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    "0",
                    "--webui-port",
                    "0",
                ],
                r"Starting Spark master at (spark://\S+)",
            )
        ).group(1)
        for host in ("127.0.0.1", "127.0.0.2"):
            stack.enter_context(
                process(
                    directory / f"worker-{host}.log",
                    [
                        spark_class,
                        "org.apache.spark.deploy.worker.Worker",
                        "--host",
                        host,
                        "--webui-port",
                        "0",
                        "--cores",
                        "1",
                        "--memory",
                        "1g",
                        "--work-dir",
                        str(directory / host),
                        master,
                    ],
                    "Successfully registered with master",
                    SPARK_LOCAL_IP=host,
                )
            )
        yield master


@contextmanager
def connect_server(directory: Path, conf: dict[str, object]) -> Iterator[str]:
    """Start a Spark Connect server on ``local[2]``; yield its address."""
    port = free_port()
    settings = {**conf, "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": port}
    with process(
        directory / "connect.log",
        [
            str(SPARK / "bin" / "spark-submit"),
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--master",
            "local[2]",
            *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
            "spark-internal",
        ],
        "Spark Connect server started at",
    ):
        yield f"sc://127.0.0.1:{port}"
