"""docker-compose.yml: its contents. tests/images runs it."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.compose import ROOT, described
from tests.support.programs import run

ONCE = {"secrets", "key", "keys"}
"""Services that end by themselves."""
OURS = {"tidegate:local", "tidegate-flights:local"}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = described({})["services"]
    return found


def test_ports_are_published_on_loopback_only(services: dict[str, dict[str, Any]]) -> None:
    published = [port for definition in services.values() for port in definition.get("ports", [])]
    assert len(published) >= 4
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []
    assert not [
        name
        for name, definition in services.items()
        if definition.get("network_mode") == "host" or "expose" in definition
    ]


def test_every_service_has_limits_and_a_health_check(services: dict[str, dict[str, Any]]) -> None:
    for name, definition in services.items():
        assert "no-new-privileges:true" in definition["security_opt"], name
        assert not definition.get("privileged"), name
        if name not in ONCE:
            assert definition["mem_limit"], name
            assert definition["cpus"], name
        if name not in ONCE | {"flights", "flights-kafka", "landings", "notifier"}:
            assert definition["healthcheck"]["test"], name


def test_no_service_has_privileges(services: dict[str, dict[str, Any]]) -> None:
    """Each service has its own user, no capabilities, and a read-only file system."""
    for name, definition in services.items():
        assert definition["cap_drop"] == ["ALL"], name
        assert "cap_add" not in definition, name
        assert definition["read_only"] is True, name
        if definition["image"] in OURS:
            assert "user" not in definition, f"{name} has the user of its image"
        else:
            assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", definition["user"]), name


def test_third_party_images_are_pinned(services: dict[str, dict[str, Any]]) -> None:
    images = {definition["image"] for definition in services.values()} - OURS
    assert len(images) == 5
    for image in images:
        assert re.fullmatch(r"docker\.io/[a-z/-]+:v?\d+\.\d+\.\d+[a-z-]*", image), image


def test_secrets_are_files_of_their_readers(services: dict[str, dict[str, Any]]) -> None:
    """Secrets are files in volumes, which only their readers mount, read-only. No environment variable has one."""
    for name, definition in services.items():
        for variable, value in definition.get("environment", {}).items():
            assert not re.search(r"PASSWORD$|SECRET$|TOKEN$|KEY$", variable), (name, variable)
            assert not re.search(r"://[^/]*@", str(value)), (name, variable)
        mounted = [volume.split(":") for volume in definition.get("volumes", []) if "-secrets:" in volume]
        if name not in ("secrets", "keys"):
            assert len(mounted) <= 1, name
            assert all(options == ["ro"] for _, _, *options in mounted), name
    holders = [name for name, definition in services.items() if "people-secrets" in str(definition.get("volumes"))]
    assert holders == ["secrets", "key"], "only these services may mount the admin key"


def test_each_image_is_built_once(services: dict[str, dict[str, Any]]) -> None:
    """Only one service builds each image, because some engines refuse an image that several services build."""
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    built = [definition["image"] for definition in services.values() if "build" in definition]
    assert sorted(built) == sorted(OURS)
    for name, definition in services.items():
        if "build" in definition:
            assert definition["build"]["target"] in stages, name
        if definition["image"] in OURS:
            assert definition["pull_policy"] == "never", f"{name} must not be pulled from a registry"


@pytest.mark.parametrize(("user", "variable"), [("", "AIRFLOW_TOKEN"), ("joe", "AIRFLOW_PASSWORD")])
def test_the_notifier_gets_its_secrets_from_files(
    services: dict[str, dict[str, Any]], tmp_path: Path, user: str, variable: str
) -> None:
    """Its shell command runs here with a program that prints its arguments and its secrets."""
    notifier = services["notifier"]
    (command,) = notifier["command"]
    for number, file in enumerate(re.findall(r"\$\(cat (\S+)\)", command)):
        (tmp_path / str(number)).write_text(f"secret of {file}")
        command = command.replace(f"cat {file})", f"cat {tmp_path}/{number})", 1)
    program = tmp_path / "tidegate"
    program.write_text(f'#!/bin/sh\necho "$@"\necho "$TIDEGATE_TOKEN, ${variable}"\n')
    program.chmod(0o755)
    environment = {**notifier["environment"], "AIRFLOW_USERNAME": user, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    printed = run(*notifier["entrypoint"], command, env=environment).splitlines()
    assert printed == [
        "notify airflow flights --tag tidegate:flights",
        "secret of /run/tidegate/key, secret of /run/secrets/airflow",
    ]
