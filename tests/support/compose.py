"""The services of docker-compose.yml as plain processes, without a container engine.

Each service has its own address in 127.0.0.0/8, so all services keep their ports. Instead of namespaces, text is
replaced in commands, environments, health checks and mounted files. The name of a service becomes its address. A path
of an image or a volume becomes a path below a directory. Users, limits and restarts are left out.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml
from dockerfile_parse import DockerfileParser

from tests.support.programs import run, tool
from tidegate.store.embedded import server_binary

ROOT = Path(__file__).parents[2]
VENV = Path(sys.prefix)
WRITABLE = ("/tmp", "/var/lib/tidegate", "/var/lib/spark")  # noqa: S108 - in a container
START_S = 180
STOP_S = 120
_INTERPOLATED = re.compile(r"\$(?:\$|\{(\w+)(?::-([^}]*))?\})")
_OWN = re.compile(r"0\.0\.0\.0|127\.0\.0\.1")


def described(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the contents of docker-compose.yml with variables replaced, as an engine reads it."""

    def interpolate(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: interpolate(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [interpolate(inner) for inner in value]
        return _INTERPOLATED.sub(_value, value) if isinstance(value, str) else value

    def _value(found: re.Match[str]) -> str:
        return "$" if found.group() == "$$" else environment.get(found[1], found[2] or "")

    read: dict[str, Any] = interpolate(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))
    return read


@dataclass(frozen=True)
class Image:
    """The environment, entry point and command of a stage of the Dockerfile."""

    environment: dict[str, str]
    entrypoint: list[str]
    command: list[str]


def _parsed(dockerfile: str) -> DockerfileParser:
    return DockerfileParser(fileobj=BytesIO(dockerfile.encode()))  # type: ignore[arg-type]  # its stubs declare text


def image_of(target: str) -> Image:
    said: dict[str, list[str]] = {}
    parents: dict[str, str] = {}
    stage = ""
    for line in _parsed((ROOT / "Dockerfile").read_text()).structure:
        if line["instruction"] == "FROM":
            parent, _, stage = line["value"].split()
            parents[stage] = parent
        said.setdefault(stage, []).append(line["content"])
    inherited = image_of(parents[target]) if parents[target] in parents else Image({}, [], [])
    own = _parsed("".join(said[target]))
    instructions = {line["instruction"]: line["value"] for line in own.structure}
    return Image(
        inherited.environment | dict(own.envs),
        json.loads(instructions["ENTRYPOINT"]) if "ENTRYPOINT" in instructions else inherited.entrypoint,
        json.loads(instructions["CMD"]) if "CMD" in instructions else inherited.command,
    )


ENTRYPOINTS = {"docker.io/prom/prometheus": ["prometheus"]}
"""Entry points of images that the Dockerfile does not build."""


@dataclass
class Service:
    name: str
    said: dict[str, Any]
    address: str
    composed: "Composed"
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def scratch(self) -> Path:
        return self.composed.directory / "services" / self.name

    @property
    def log(self) -> Path:
        return self.composed.directory / "logs" / f"{self.name}.log"

    @cached_property
    def paths(self) -> dict[str, Path]:
        """The path on this machine for each path of the container."""
        own = [*WRITABLE, *(tmpfs.partition(":")[0] for tmpfs in self.said.get("tmpfs", []))]
        for target in self.mounted.values():
            # A command may name the parent folder, too. Top-level folders belong to the system.
            own += [target, *(str(parent) for parent in [Path(target).parent] if len(parent.parts) > 2)]
        found = {path: self.scratch / path.removeprefix("/") for path in own}
        return found | {"/opt/tidegate": VENV, "/opt/spark-python": VENV, "/opt/flights": ROOT}

    @property
    def mounted(self) -> dict[str, str]:
        """The path in the container of each volume or mounted file."""
        return {source: target for source, target, *_ in (said.split(":") for said in self.said.get("volumes", []))}

    def prepare(self) -> None:
        """Copy mounted files with their text replaced, link volumes, and create the other folders."""
        for source, target in self.mounted.items():
            place = self.paths[target]
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.startswith("."):
                self._take_in(ROOT / source, place)
            elif not place.is_symlink():
                place.symlink_to(self.composed.volume(source))
        for place in self.paths.values():
            if not place.exists():
                place.mkdir(parents=True)

    def _take_in(self, source: Path, place: Path) -> None:
        assert source.exists(), f"{self.name} mounts {source}, which does not exist"
        for file in source.rglob("*") if source.is_dir() else [source]:
            if file.is_file():
                to = place / file.relative_to(source) if source.is_dir() else place
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_text(self.here(file.read_text()))

    def here(self, text: str) -> str:
        """Return a text of the service, with names replaced by addresses and paths by those of this machine."""
        names = "|".join(sorted(map(re.escape, self.composed.services), key=len, reverse=True))
        places = "|".join(sorted(map(re.escape, self.paths), key=len, reverse=True))
        if text in self.composed.services:
            return self.composed.services[text].address
        return re.sub(
            rf"(?P<own>{_OWN.pattern})|(?<![\w./-])(?P<path>{places})(?![\w.-])|(?<![\w.-])(?P<name>{names})(?=:\d)",
            lambda found: (
                self.address
                if found["own"]
                else str(self.paths[found["path"]])
                if found["path"]
                else self.composed.services[found["name"]].address
            ),
            text,
        )

    @cached_property
    def image(self) -> Image:
        for other in self.composed.services.values():
            if other.said["image"] == self.said["image"] and "build" in other.said:
                return image_of(other.said["build"]["target"])
        return Image({}, ENTRYPOINTS.get(self.said["image"].rpartition(":")[0], []), [])

    @property
    def command(self) -> list[str]:
        entry = self.said.get("entrypoint", self.image.entrypoint)
        said: list[str] = [*entry, *self.said.get("command", self.image.command)]
        return [said[0], *map(self.here, said[1:])]

    @property
    def environment(self) -> dict[str, str]:
        said = self.image.environment | self.said.get("environment", {})
        variables = {name: self.here(str(value)) for name, value in said.items()}
        variables.pop("JAVA_HOME", None)  # the Java of this machine replaces the image's
        path = [str(self.composed.programs), *variables.pop("PATH", "").split(":"), os.environ["PATH"]]
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG") if name in os.environ}
        return kept | {"HOME": str(self.scratch), "PATH": ":".join(path)} | variables

    def start(self) -> None:
        self.prepare()
        self.log.parent.mkdir(exist_ok=True)
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.scratch,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *command: str) -> str:
        """Run a service that ends by itself, like `docker compose run`; return its output."""
        self.prepare()
        said = [*self.said["entrypoint"], *command] if command else self.command
        return run(*said, cwd=self.scratch, env=self.environment)

    def is_healthy(self) -> bool:
        kind, *test = self.said["healthcheck"]["test"]
        command = ["/bin/sh", "-c", *test] if kind == "CMD-SHELL" else test
        here = [self.here(part) for part in command]
        asked = subprocess.run(here, cwd=self.scratch, env=self.environment, capture_output=True, timeout=60)
        return asked.returncode == 0

    def wait(self, condition: str) -> None:
        """Wait until the services that depend on this one may start."""
        assert self.process is not None
        if condition == "service_completed_successfully":
            assert self.process.wait(START_S) == 0, self.log.read_text()
            return
        assert condition == "service_healthy"
        deadline = time.monotonic() + START_S
        while not self.is_healthy():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stop the service like `docker compose stop`; return its exit status."""
        assert self.process is not None
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.Signals[self.said.get("stop_signal", "SIGTERM")])
            return self.process.wait(STOP_S)
        finally:
            self.end()

    def end(self) -> None:
        """Kill the processes that are left."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Composed:
    """The services of docker-compose.yml; ``environment`` has the values of its variables."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.directory = directory
        self.programs = directory / "programs"
        self.programs.mkdir()
        for name, program in {"valkey-server": server_binary(), "valkey-cli": tool("redis-cli", "redis-tools")}.items():
            (self.programs / name).symlink_to(program)
        net = secrets.randbelow(200) + 20
        services = described(environment)["services"]
        self.services = {
            name: Service(name, said, f"127.0.{net}.{host}", self)
            for host, (name, said) in enumerate(services.items(), 1)
        }

    def __getitem__(self, name: str) -> Service:
        return self.services[name]

    def volume(self, name: str) -> Path:
        place = self.directory / "volumes" / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def up(self, *names: str) -> None:
        """Start services after the services that they depend on."""
        done: set[str] = set()
        for name in names:
            self._up(self.services[name], done)

    def _up(self, service: Service, done: set[str]) -> None:
        if service.name in done:
            return
        done.add(service.name)
        for name, depends in service.said.get("depends_on", {}).items():
            self._up(self.services[name], done)
            self.services[name].wait(depends["condition"])
        if service.process is None or service.process.poll() is not None:
            service.start()

    def down(self) -> dict[str, int]:
        """Stop all services, dependent ones first; return their exit statuses."""
        running = [service for service in self.services.values() if service.process is not None]
        ended = {}
        for service in reversed(list(_in_order(running))):
            ended[service.name] = service.stop()
            service.process = None
        return ended

    def end(self) -> None:
        for service in self.services.values():
            service.end()

    def logs(self) -> str:
        """Return the ends of all logs, for the message of a failed test."""
        files = sorted((self.directory / "logs").iterdir())
        return "\n".join(f"--- {file.stem}\n{file.read_text(errors='replace')[-6000:]}" for file in files)


def _in_order(services: list[Service]) -> Iterator[Service]:
    """Yield services after those that they depend on."""
    left = {service.name: service for service in services}
    while left:
        ready = [name for name, service in left.items() if not left.keys() & service.said.get("depends_on", {}).keys()]
        assert ready, f"services depend on each other: {sorted(left)}"
        for name in ready:
            yield left.pop(name)
