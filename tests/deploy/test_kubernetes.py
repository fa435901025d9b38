"""deploy/kubernetes: consistency of the manifests, and their container, run as a process."""

import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import yaml

from tests.support.compose import ROOT, VENV, image_of
from tests.support.ports import free_port
from tests.support.waiting import until
from tidegate.__main__ import cli
from tidegate.auth.keyring import create
from tidegate.auth.roles import Role
from tidegate.store.embedded import EmbeddedValkey

MANIFESTS = ROOT / "deploy" / "kubernetes"


def manifest(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((MANIFESTS / name).read_text())
    return read


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    found: dict[str, Any] = manifest("deployment.yaml")["spec"]["template"]
    return found


def test_every_manifest_is_applied_and_secrets_are_ignored_by_git() -> None:
    values = manifest("kustomization.yaml")
    there = {path.name for path in MANIFESTS.glob("*.yaml")}
    assert {*values["resources"], "kustomization.yaml"} == there
    (generated,) = values["secretGenerator"]
    for file in generated["files"]:
        assert f"deploy/kubernetes/{file.rpartition('/')[0]}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_all_manifests_select_the_same_pods(pod: dict[str, Any]) -> None:
    labels = pod["metadata"]["labels"]
    selectors = [
        manifest("deployment.yaml")["spec"]["selector"]["matchLabels"],
        manifest("service.yaml")["spec"]["selector"],
        manifest("disruption-budget.yaml")["spec"]["selector"]["matchLabels"],
        manifest("network-policy.yaml")["spec"]["podSelector"]["matchLabels"],
        pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    assert selectors == [labels] * len(selectors)
    (container,) = pod["spec"]["containers"]
    assert manifest("service.yaml")["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert pod["spec"]["serviceAccountName"] == manifest("service-account.yaml")["metadata"]["name"]
    (secret,) = manifest("kustomization.yaml")["secretGenerator"]
    assert pod["spec"]["volumes"][0]["secret"]["secretName"] == secret["name"]


def test_the_notifier_is_consistent() -> None:
    """Its pods may reach the coordinators, its secrets are ignored by git, and its command is valid."""
    values, deployment = manifest("notifier/kustomization.yaml"), manifest("notifier/deployment.yaml")
    assert values["resources"] == [path.name for path in (MANIFESTS / "notifier").glob("[!k]*.yaml")]
    assert values["images"] == manifest("kustomization.yaml")["images"]
    template = deployment["spec"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    admitted = manifest("network-policy.yaml")["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert labels.items() >= {**deployment["spec"]["selector"]["matchLabels"], **admitted}.items()
    coordinators = manifest("deployment.yaml")["spec"]["selector"]["matchLabels"]
    assert not coordinators.items() <= labels.items(), "the service must not send calls to the notifier"
    (generated,), (volume,) = values["secretGenerator"], pod["volumes"]
    assert volume["secret"]["secretName"] == generated["name"]
    assert "deploy/kubernetes/notifier/secret/" in (ROOT / ".gitignore").read_text().splitlines()
    (container,) = pod["containers"]
    (mount,) = container["volumeMounts"]
    shell = container["command"][-1]
    for file in generated["files"]:
        assert f"$(cat {mount['mountPath']}/{file.rpartition('/')[2]})" in shell
    words = shlex.split(shell.partition("exec tidegate ")[2])
    address = {each["name"]: each["value"] for each in container["env"]}["AIRFLOW_URL"]
    command: Any = typer.main.get_command(cli)
    for name in ("notify", "airflow"):
        assert words.pop(0) == name
        command = command.commands[name]
    assert command.make_context(name, [*words, "--airflow", address]).params["job"] == "flights"


def test_service_links_are_disabled(pod: dict[str, Any]) -> None:
    """With service links, Kubernetes would set TIDEGATE_PORT for a service called `tidegate`."""
    assert manifest("service.yaml")["metadata"]["name"] == "tidegate"
    assert pod["spec"]["enableServiceLinks"] is False


def test_the_container_serves_and_ends_within_its_grace_period(
    pod: dict[str, Any], valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    """The process has the container's environment, secret files and probes, but a free port of this machine."""
    (container,) = pod["spec"]["containers"]
    port = free_port()
    secret = {file.rpartition("/")[2]: tmp_path / file.rpartition("/")[2] for file in _secret_files()}
    secret["tidegate_redis_url"].write_text(f"{valkey.url}\n")
    secret["tidegate_token_secret"].write_text("0123456789abcdef0123456789abcdef\n")
    create(secret["keys.json"], "people", Role.READ, "")
    (mount,) = container["volumeMounts"]
    assert mount["readOnly"] is True
    image = image_of("coordinator")
    values = image.environment | {variable["name"]: variable["value"] for variable in container["env"]}
    environment = {name: value.replace(mount["mountPath"], str(tmp_path)) for name, value in values.items()}
    assert environment["TIDEGATE_PORT"] == str(container["ports"][0]["containerPort"])
    log = tmp_path / "log"
    with open(log, "wb") as log_file:
        running = subprocess.Popen(
            [VENV / "bin" / image.entrypoint[0], *image.command],
            stdout=log_file,
            stderr=log_file,
            cwd=tmp_path,
            env=environment | {"PATH": os.environ["PATH"], "TIDEGATE_HOST": "127.0.0.1", "TIDEGATE_PORT": port},
        )
    try:

        def answers(probe: str) -> bool:
            assert running.poll() is None, log.read_text()
            try:
                path = container[probe]["httpGet"]["path"]
                return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=30).is_success
            except httpx.TransportError:
                return False

        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            until(lambda probe=probe: answers(probe), probe)  # type: ignore[misc]
        assert httpx.get(f"http://127.0.0.1:{port}/v1/jobs").status_code == 401
        running.send_signal(signal.SIGTERM)
        grace = pod["spec"]["terminationGracePeriodSeconds"] - container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert grace > 10, "open calls must have at least 10 s to end"
        assert running.wait(120) == 0, log.read_text()
    finally:
        running.kill()
        running.wait()


def _secret_files() -> list[str]:
    (generated,) = manifest("kustomization.yaml")["secretGenerator"]
    files: list[str] = generated["files"]
    return files
