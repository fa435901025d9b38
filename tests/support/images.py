"""Images, really built and really run, where there is no engine: by buildah, in a chroot, on a base from Debian."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.programs import absent, run, tool

ROOT = Path(__file__).parents[2]
BASE = "localhost/python"
RELEASE = "bookworm"
BUILD_S = 1200
HOSTS_OWN = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""How this machine comes to packages."""


class Buildah:
    """A store of images of its own, in ``directory``."""

    def __init__(self, directory: Path) -> None:
        if os.geteuid() != 0:
            absent("Building an image in a chroot takes root.")
        self._directory = directory
        buildah = tool("buildah", "buildah")
        self._command = [buildah, "--root", str(directory / "root"), "--runroot", str(directory / "run")]
        self._environment = os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}

    def __call__(self, *arguments: str) -> str:
        return run(*self._command, *arguments, timeout_s=BUILD_S, env=self._environment).strip()

    def make_base(self) -> None:
        """What stands in for the Python image of a registry: the same Debian, with its own Python."""
        system = self._directory / "base"
        run(
            tool("debootstrap", "debootstrap"), "--variant=minbase", "--include=python3,python3-venv,ca-certificates",
            RELEASE, str(system), timeout_s=BUILD_S,
        )  # fmt: skip
        for name in HOSTS_OWN:
            if Path(name).exists():
                shutil.copyfile(name, system / name.removeprefix("/"))
        container = self("from", "scratch")
        self("add", "--quiet", container, str(system), "/")
        self("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(system)

    def build(self, target: str) -> str:
        """The image of a target; returns its name."""
        name = f"localhost/{target}"
        self(
            "build", "--quiet", "--format", "docker", "--layers=false", "--build-arg", f"PYTHON_IMAGE={BASE}",
            "--target", target, "--tag", name, str(ROOT),
        )  # fmt: skip
        return name

    def config(self, image: str) -> dict[str, Any]:
        """What an image says of how it is to be run."""
        told: dict[str, Any] = json.loads(self("inspect", "--type", "image", image))["Docker"]["config"]
        return told

    @contextmanager
    def container(self, image: str) -> Iterator["Container"]:
        made = Container(self, self("from", image), self.config(image))
        try:
            yield made
        finally:
            self("rm", made.name)

    def popen(self, *arguments: str, log: Path) -> "subprocess.Popen[bytes]":
        with open(log, "wb") as told:
            return subprocess.Popen(
                [*self._command, *arguments], env=self._environment, stdout=told, stderr=subprocess.STDOUT
            )


@dataclass(frozen=True)
class Container:
    """As its own user, with its own environment."""

    buildah: Buildah
    name: str
    config: dict[str, Any]

    def run(self, *command: str, **environment: str) -> str:
        return self.buildah("run", *_said(environment), self.name, "--", *command)

    def start(self, log: Path, volumes: dict[Path, str], **environment: str) -> "subprocess.Popen[bytes]":
        """Its own entry point and command."""
        mounted = (part for outside, inside in volumes.items() for part in ("--volume", f"{outside}:{inside}:ro"))
        command = [*(self.config["Entrypoint"] or ()), *(self.config["Cmd"] or ())]
        return self.buildah.popen("run", *mounted, *_said(environment), self.name, "--", *command, log=log)


def _said(environment: dict[str, str]) -> list[str]:
    return [part for name, value in environment.items() for part in ("--env", f"{name}={value}")]
