"""A Docker engine for tests, and base images for it that need no registry.

The engine has its own directories, socket and addresses, so it does not disturb another engine on the machine. While it
runs, one firewall rule lets its containers reach each other. Its images stay in the user's cache directory for the next
run. Containers, networks and volumes do not.
"""

import fcntl
import importlib.util
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from examples.flights.settings import KAFKA_JARS
from tests.support import debian
from tests.support.programs import absent, run, tool
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
BASE = "tidegate-tests/python"
JAVA = "21"
"""The version of Java in this release of Debian."""
PACKAGES = ("python3", "python3-venv", "ca-certificates")
LEFT_OUT = ("./var/cache/apt/archives/*.deb", "./var/cache/apt/*.bin", "./var/lib/apt/lists/*", "./proc/*", "./sys/*")
ADDRESSES = "172.30.0.0/16"
FORWARD = ("FORWARD", "--source", ADDRESSES, "--destination", ADDRESSES, "--jump", "ACCEPT")
"""The firewall rule. Without it, containers cannot reach each other if another engine has set the policy to DROP."""
BUILD_S = 1200
START_S = 120
STOP_S = 120
DATA_VALID_S = 7 * 24 * 3600
STAND_INS = ROOT / "tests" / "images" / "stand_ins"
"""Folder with the Dockerfile of images that replace those of registries."""

log = logging.getLogger("engine")


class EngineFailed(Exception):
    """The engine did not start. The message has the end of its log."""


class Engine:
    """A running ``dockerd``.

    Attributes:
        data: The directory of its images, containers and volumes.
        scratch: A directory with a short path for its socket and its state.
        driver: Its storage driver. ``overlay2`` needs support by the file system. ``vfs`` is five times slower.
    """

    def __init__(self, data: Path, scratch: Path, driver: str) -> None:
        self.data, self.scratch, self.driver = data, scratch, driver
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BUILDKIT_", "COMPOSE_", "DEMO_", "DOCKER_", "TIDEGATE_"))
        } | {
            "DOCKER_HOST": f"unix://{scratch}/docker.sock",
            "DOCKER_CONFIG": str(scratch / "client"),
            # BuildKit is a plugin of its own, and its builds cannot use the network of the host.
            "DOCKER_BUILDKIT": "0",
        }
        (scratch / "daemon.json").write_text("{}")  # instead of the configuration of the machine's own engine
        options = {
            "config-file": scratch / "daemon.json",
            "data-root": data,
            "exec-root": scratch / "exec",
            "pidfile": data.with_name("pid"),
            "host": f"unix://{scratch}/docker.sock",
            "storage-driver": driver,
            "bridge": "none",
            "iptables": "false",
            "ip6tables": "false",
            "ip-forward": "false",
            "ip-masq": "false",
            "default-address-pool": f"base={ADDRESSES},size=24",
            "containerd-namespace": "tidegate-tests",
            "containerd-plugins-namespace": "tidegate-tests-plugins",
            "shutdown-timeout": 10,
        }
        with open(scratch / "log", "wb") as output:
            self._process = subprocess.Popen(
                # The kernel ends the engine if this process is killed.
                ["setpriv", "--pdeathsig", "TERM", "--", tool("dockerd", "docker.io")]
                + [f"--{name}={value}" for name, value in options.items()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_S
        while subprocess.run(
            [tool("docker", "docker.io"), "version"], env=self.environment, capture_output=True
        ).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise EngineFailed((scratch / "log").read_text()[-2000:])
            time.sleep(0.2)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        finally:
            self._process.kill()
        _discard(self.scratch / "exec")

    def docker(self, *arguments: str, **options: Any) -> str:
        return run("docker", *arguments, timeout_s=BUILD_S, env=self.environment, **options).strip()

    def clear(self) -> None:
        """Remove all containers, networks and volumes, and the layers of replaced images."""
        if containers := self.docker("ps", "--all", "--quiet").split():
            self.docker("rm", "--force", "--volumes", *containers)
        self.docker("network", "prune", "--force")
        if volumes := self.docker("volume", "ls", "--quiet").split():
            self.docker("volume", "rm", "--force", *volumes)
        self.docker("image", "prune", "--force")

    def make_base(self) -> None:
        """Make the base image, in place of the Python image of a registry, unless it exists."""
        key = debian.key(PACKAGES)
        named = self.docker("images", "--quiet", "--filter", f"label=key={key}", BASE)
        if named:
            return
        log.info("Making a base image with Debian %s (two minutes) ...", debian.RELEASE)
        system = self.scratch / "system"
        debian.make_system(system, PACKAGES)
        pack = [tool("tar", "tar"), "-C", str(system), *(f"--exclude={pattern}" for pattern in LEFT_OUT), "-c", "."]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as packed:
            self.docker("import", "--change", f"LABEL key={key}", "-", BASE, stdin=packed.stdout)
        assert packed.returncode == 0, "tar failed to pack the base"
        shutil.rmtree(system)

    def build(self, target: str, name: str) -> str:
        """Build a target of the Dockerfile and return the image's name."""
        began = time.monotonic()
        log.info("Building the image %s ...", name)
        options = ["--network", "host", "--build-arg", f"PYTHON_IMAGE={BASE}", "--build-arg", f"JAVA={JAVA}"]
        # A name for the last stage of each chain keeps the layers of the chain for the next run.
        for stage in last_stages(target):
            tag = name if stage == target else f"tidegate-tests/{stage}"
            self.docker("build", *options, "--target", stage, "--tag", tag, str(ROOT))
        log.info("Built %s in %.0f s: %s", name, time.monotonic() - began, self.size(name))
        return name

    def make_stand_ins(self, images: Mapping[str, str]) -> None:
        """Make images with programs of Debian, PyPI and Maven under the names of images from registries.

        Args:
            images: The name for each stage of the Dockerfile in ``STAND_INS``.
        """
        versions = {stage: re.search(r":(\d+\.\d+\.\d+)", name) for stage, name in images.items()}
        assert versions["valkey"], images
        assert versions["kafka"], images
        kafka = versions["kafka"][1]
        assert list((KAFKA_JARS / "broker").glob(f"kafka_*-{kafka}.jar")), f"the jars are not of version {kafka}"
        options = ["--network", "host", "--build-arg", f"BASE={BASE}", "--build-arg", f"VALKEY={versions['valkey'][1]}"]
        with tempfile.TemporaryFile() as context:
            pack = [tool("tar", "tar"), "-c", "-C", str(STAND_INS), ".", "-C", str(KAFKA_JARS), "broker"]
            subprocess.run(pack, check=True, stdout=context)
            for stage, name in images.items():
                log.info("Making a stand-in for the image %s ...", name)
                context.seek(0)
                self.docker("build", *options, "--target", stage, "--tag", name, "-", stdin=context)

    def size(self, image: str) -> str:
        """Return the size of an image, and of its part on top of the base, as text."""
        whole, base = (int(self.docker("image", "inspect", "--format", "{{.Size}}", name)) for name in (image, BASE))
        return f"{whole / 1e6:.0f} MB, of which the base {base / 1e6:.0f} MB"

    def config(self, image: str) -> dict[str, Any]:
        """Return an image's configuration: user, entry point, command, health check."""
        config: dict[str, Any] = json.loads(self.docker("image", "inspect", image))[0]["Config"]
        return config


class Compose:
    """Docker Compose with the shipped docker-compose.yml; ``environment`` has the values of its variables."""

    def __init__(self, engine: Engine, **environment: str) -> None:
        self.engine = engine
        self._environment = engine.environment | environment
        package = importlib.util.find_spec("compose")
        assert package is not None and package.origin is not None
        self._command = [str(Path(package.origin).with_name("docker-compose")), "--project-directory", str(ROOT)]

    def __call__(self, *arguments: str, timeout_s: float = 600) -> str:
        """Run a command and return its output; fail if it fails."""
        return run(*self._command, *arguments, timeout_s=timeout_s, env=self._environment)

    def popen(self, *arguments: str, output: Path) -> "subprocess.Popen[bytes]":
        """Start a command in the foreground, as in a terminal, with its output in a file."""
        with open(output, "wb") as file:
            return subprocess.Popen(
                [*self._command, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def states(self) -> dict[str, str]:
        """Return the state of each service that has a container.

        Returns:
            By service: its health (``starting``, ``healthy``, ``unhealthy``), or ``created``, ``up`` or ``exited 0``.
        """
        filters = [f"--filter=label=com.docker.compose.{label}" for label in ("project=tidegate", "oneoff=False")]
        columns = '{{.Label "com.docker.compose.service"}}\t{{.Status}}'
        lines = self.engine.docker("ps", "--all", *filters, "--format", columns).splitlines()
        found = dict(line.split("\t") for line in lines)
        return {name: _state(status) for name, status in found.items()}

    def inspect(self, service: str) -> dict[str, Any]:
        """Return what the engine says of the container of a service."""
        container = self("ps", "--all", "--quiet", service).strip()
        inspected: dict[str, Any] = json.loads(self.engine.docker("inspect", container))[0]
        return inspected

    def volume(self, name: str) -> Path:
        """Return the directory of a volume on this machine."""
        return self.engine.data / "volumes" / f"tidegate_{name}" / "_data"


def _state(status: str) -> str:
    if health := re.search(r"\((?:health: )?([a-z]+)\)$", status):
        return health[1]
    if exited := re.match(r"Exited \((\d+)\)", status):
        return f"exited {exited[1]}"
    return status.split()[0].lower()


def last_stages(target: str) -> list[str]:
    """Return the needed stages on which no other needed stage is based, in build order."""
    bases: dict[str, str] = {}
    copies: dict[str, list[str]] = {}
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if begun := re.match(r"FROM (\S+) AS (\S+)$", line):
            base, stage = begun.groups()
            bases[stage], copies[stage] = base, []
        elif copied := re.match(r"COPY .*--from=(\S+)", line):
            copies[stage].append(copied[1])
    needed = {target}
    for stage in reversed(bases):
        if stage in needed:
            needed |= {bases[stage], *copies[stage]}
    return [stage for stage in bases if stage in needed - {bases[name] for name in needed if name in bases}]


@contextmanager
def running_engine() -> Iterator[Engine]:
    """Start the engine with its data in the user's cache directory, and with a base image.

    The data is removed if it is older than DATA_VALID_S, or if the engine does not start with it. Only one process at a
    time uses it. Other processes wait.
    """
    if os.geteuid() != 0:
        absent("A Docker engine needs root: run the tests as root.")
    for name, package in {"dockerd": "docker.io", "docker": "docker.io", "iptables": "iptables"}.items():
        tool(name, package)
    tool("debootstrap", "debootstrap")
    cache = (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate" / "engine").resolve()
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock, tempfile.TemporaryDirectory(prefix="tidegate-") as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        data, created = cache / "data", cache / "created"
        _await_end(cache / "pid")
        if not created.exists() or not 0 <= time.time() - created.stat().st_mtime < DATA_VALID_S:
            _discard(data)
            created.touch()
        log.info("Starting a Docker engine ...")
        engine = _started(data, Path(scratch))
        try:
            if subprocess.run([tool("iptables", "iptables"), "--check", *FORWARD], capture_output=True).returncode:
                run("iptables", "--insert", *FORWARD)
            engine.clear()  # containers of a killed run
            engine.make_base()
            yield engine
            engine.clear()
        finally:
            subprocess.run([tool("iptables", "iptables"), "--delete", *FORWARD], capture_output=True)
            engine.stop()


def _await_end(pidfile: Path) -> None:
    """Wait until the engine of a killed run has ended. The kernel has told it to stop."""
    if pidfile.exists():
        process = Path("/proc") / pidfile.read_text().strip() / "comm"
        until(lambda: not process.exists() or "dockerd" not in process.read_text(), f"{process} has ended", STOP_S)


def _started(data: Path, scratch: Path) -> Engine:
    failures = []
    for driver in ("overlay2", "vfs"):
        try:
            return Engine(data, scratch, driver)
        except EngineFailed as failure:
            failures.append(f"{driver}: {failure}")
            _discard(data)
    absent("A Docker engine does not start on this machine. " + "\n".join(failures))
    raise AssertionError


def _discard(data: Path) -> None:
    """Remove a directory of an engine, and the mounts that the engine has left in it."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed(mounts):
        if mount.startswith(f"{data}/"):
            run("umount", mount)
    if data.exists():
        shutil.rmtree(data)
