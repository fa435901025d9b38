"""A Kafka broker of the demo's own, from jars that Maven copies (``make demo SOURCE=kafka``)."""

import base64
import ctypes
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from examples.flights.settings import KAFKA_JARS, DemoError

START_S = 120
PR_SET_PDEATHSIG = 1
"""The number of the option in ``<sys/prctl.h>``."""

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "1000",
}
"""The settings of a broker that do not depend on its ports."""


class LocalBroker:
    """A broker in KRaft mode on loopback. A later broker on the same directory has the same topics.

    Args:
        directory: Directory of its settings, log and data.
        settings: Settings that replace those of a single broker.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        if not (KAFKA_JARS / "broker").is_dir():
            raise DemoError(
                f"The jars of Kafka are missing in {KAFKA_JARS}; install Maven, and run: make demo SOURCE=kafka."
            )
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._port, controller = directory, _free_port(), f"127.0.0.1:{_free_port()}"
        self.address = f"127.0.0.1:{self._port}"
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        self.settings = _SETTINGS | {
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": f"{directory}/data",
        }
        self.settings |= settings or {}
        self._file = directory / "server.properties"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the broker, and wait until it answers.

        Raises:
            DemoError: If it does not start.
        """
        java = ["java", "-Xmx512m", "-cp", f"{KAFKA_JARS / 'broker'}/*"]
        with open(self._directory / "broker.log", "ab") as log:
            self._file.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
            if not (self._directory / "data").exists():
                tool = [*java, "kafka.tools.StorageTool", "format", "-t", self.cluster_id]
                subprocess.run([*tool, "-c", str(self._file)], stdout=log, stderr=log, check=True)
            command = [*java, "kafka.Kafka", str(self._file)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=_end_with_parent)
        ends = time.monotonic() + START_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > ends:
                self.stop()
                raise DemoError(f"The broker did not start; read {self._directory / 'broker.log'}.")
            time.sleep(0.1)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def stop(self) -> None:
        """Stop the broker."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def local_broker(directory: Path) -> Iterator[str]:
    """Run a broker in the context, and yield its address."""
    broker = LocalBroker(directory)
    try:
        broker.start()
        yield broker.address
    finally:
        broker.stop()


def _end_with_parent() -> None:
    """Let Linux kill this process when the demo is killed: a later broker could not open the data directory."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
