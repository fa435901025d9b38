"""Images without a container engine: buildah builds and runs them in a chroot, on a base made by debootstrap."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.programs import absent, run, tool

ROOT = Path(__file__).parents[2]
BASE = "localhost/python"
RELEASE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
BUILD_S = 1200
STORE_VALID_S = 7 * 24 * 3600
HOST_FILES = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""Files of the host that pip in the base needs to reach the package index."""


class Buildah:
    """A store of images in a directory.

    With the overlay driver, the store keeps the layers of builds and runs each unchanged step of the Dockerfile once.
    The vfs driver works on every file system, but copies the whole image for each layer. With vfs, the store keeps no
    layers.
    """

    def __init__(self, store: Path, driver: str) -> None:
        self._command = [tool("buildah", "buildah"), "--root", str(store / "root"), "--runroot", str(store / "run")]
        self._environment = os.environ | {"STORAGE_DRIVER": driver, "BUILDAH_ISOLATION": "chroot"}
        self._layers = driver == "overlay"

    def __call__(self, *arguments: str) -> str:
        return run(*self._command, *arguments, timeout_s=BUILD_S, env=self._environment).strip()

    def make_base(self) -> None:
        """Make the base image: Debian with its own Python, in place of the Python image of a registry."""
        container = self("from", "scratch")
        system = Path(self("mount", container))
        run(
            tool("debootstrap", "debootstrap"),
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            RELEASE,
            str(system),
            timeout_s=BUILD_S,
        )
        for name in _host_files():
            shutil.copyfile(name, system / name.removeprefix("/"))
        self("umount", container)
        self("commit", "--quiet", "--rm", container, BASE)

    def check_base(self) -> None:
        """Raise AssertionError if the base is missing or does not run Python."""
        self("rm", "--all")  # containers of a killed run
        container = self("from", "--pull-never", BASE)
        self("run", container, "--", "python3", "-m", "venv", "--help")
        self("rm", container)

    def build(self, target: str) -> str:
        """Build a target of the Dockerfile and return the image's name."""
        if not self._layers:
            return self._build(target, "--layers=false")
        # `rmi --prune` removes an image that has neither a name nor an image based on it. A name for the last stage of
        # each chain keeps the layers of the chain for the next run.
        for stage in last_stages(target):
            try:
                self._build(stage, "--layers")
            except AssertionError:
                # Cached layers may be damaged, so only a failure without them counts.
                self._build(stage, "--layers", "--no-cache")
        return f"localhost/{target}"

    def _build(self, stage: str, *options: str) -> str:
        name = f"localhost/{stage}"
        self(
            "build",
            "--quiet",
            "--format",
            "docker",
            *options,
            "--build-arg",
            f"PYTHON_IMAGE={BASE}",
            "--target",
            stage,
            "--tag",
            name,
            str(ROOT),
        )
        return name

    def config(self, image: str) -> dict[str, Any]:
        """Return an image's configuration: user, entry point, command, health check."""
        config: dict[str, Any] = json.loads(self("inspect", "--type", "image", image))["Docker"]["config"]
        return config

    @contextmanager
    def container(self, image: str) -> Iterator["Container"]:
        made = Container(self, self("from", image), self.config(image))
        try:
            yield made
        finally:
            self("rm", made.name)

    def popen(self, *arguments: str, log: Path) -> "subprocess.Popen[bytes]":
        with open(log, "wb") as output:
            return subprocess.Popen(
                [*self._command, *arguments], env=self._environment, stdout=output, stderr=subprocess.STDOUT
            )


@dataclass(frozen=True)
class Container:
    """A container that runs commands as the image's user, with the image's environment."""

    buildah: Buildah
    name: str
    config: dict[str, Any]

    def run(self, *command: str, **environment: str) -> str:
        return self.buildah("run", *_options(environment), self.name, "--", *command)

    def start(self, log: Path, volumes: dict[Path, str], **environment: str) -> "subprocess.Popen[bytes]":
        """Start the image's entry point and command."""
        mounted = (part for outside, inside in volumes.items() for part in ("--volume", f"{outside}:{inside}:ro"))
        command = [*(self.config["Entrypoint"] or ()), *(self.config["Cmd"] or ())]
        return self.buildah.popen("run", *mounted, *_options(environment), self.name, "--", *command, log=log)


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
def cached_store() -> Iterator[Buildah]:
    """Open the store in the user's cache directory, with a base image in it.

    The store is created again if it is older than STORE_VALID_S, if the inputs of the base have changed, or if the base
    does not run. Only one process at a time uses the store. Other processes wait.
    """
    if os.geteuid() != 0:
        absent("Building an image in a chroot needs root: run the tests as root.")
    tool("debootstrap", "debootstrap")
    cache = (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate" / "images").resolve()
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        driver = _driver(cache)
        store, key = cache / "store", _key(driver)
        buildah = Buildah(store, driver)
        if not _is_valid(store, key, buildah):
            _discard(store)
            store.mkdir()
            buildah.make_base()
            # The key is written last and in one step, so a store without a key is incomplete.
            (store / "key.new").write_text(key)
            (store / "key.new").rename(store / "key")
        yield buildah
        buildah("rmi", "--prune")


def _driver(directory: Path) -> str:
    with tempfile.TemporaryDirectory(dir=directory) as probe:
        command = [tool("buildah", "buildah"), "--root", f"{probe}/root", "--runroot", f"{probe}/run", "info"]
        probed = subprocess.run(command, env=os.environ | {"STORAGE_DRIVER": "overlay"}, capture_output=True)
    return "vfs" if probed.returncode else "overlay"


def _host_files() -> list[str]:
    return [name for name in HOST_FILES if Path(name).exists()]


def _key(driver: str) -> str:
    """Return a digest of the inputs of the base."""
    determined = [driver, RELEASE, *PACKAGES]
    for name in _host_files():
        determined += [name, hashlib.sha256(Path(name).read_bytes()).hexdigest()]
    return hashlib.sha256("\n".join(determined).encode()).hexdigest()


def _is_valid(store: Path, key: str, buildah: Buildah) -> bool:
    try:
        age_s = time.time() - (store / "key").stat().st_mtime
        if (store / "key").read_text() != key or not 0 <= age_s < STORE_VALID_S:
            return False
        buildah.check_base()
    except (OSError, ValueError, AssertionError, subprocess.TimeoutExpired):
        return False
    return True


def _discard(store: Path) -> None:
    """Remove a store and the mounts that a killed run has left in it."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed(mounts):
        if mount.startswith(f"{store}/"):
            run("umount", mount)
    if store.exists():
        shutil.rmtree(store)


def _options(environment: dict[str, str]) -> list[str]:
    return [part for name, value in environment.items() for part in ("--env", f"{name}={value}")]
