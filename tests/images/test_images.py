"""The images, built from the Dockerfile and run with their own user, entry point and environment."""

import signal
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.images import BASE, ROOT, Buildah
from tests.support.ports import free_port
from tidegate.auth.keyring import create
from tidegate.auth.roles import Role

UID = 10001
PYTHON = "/opt/tidegate/bin/python"

# A test's timeout includes its fixtures. With an empty cache they take minutes.
pytestmark = pytest.mark.timeout(1800)


def coordinator_process(running: "subprocess.Popen[bytes]") -> psutil.Process:
    """Return the coordinator's process, a descendant of the buildah process."""
    children = psutil.Process(running.pid).children(recursive=True)
    (found,) = (child for child in children if child.cmdline()[:2] == [PYTHON, "/opt/tidegate/bin/tidegate"])
    return found


def test_a_coordinator_serves_from_its_image(buildah: Buildah, coordinator_image: str, tmp_path: Path) -> None:
    """The entry point runs as the image's user, requires keys, answers /readyz and stops on SIGTERM."""
    keys, port, log = tmp_path / "keys.json", free_port(), tmp_path / "log"
    key = create(keys, "admin", Role.ADMIN, "")
    keys.chmod(0o644)
    with buildah.container(coordinator_image) as container:
        config = container.config
        assert (config["User"], config["Entrypoint"], config["StopSignal"]) == (f"{UID}:{UID}", ["tidegate"], "SIGTERM")
        assert "the service has no keys" in _refused(lambda: container.run("tidegate", "serve"))
        running = container.start(
            log, {keys: "/keys.json"}, TIDEGATE_KEYS_FILE="/keys.json", TIDEGATE_HOST="127.0.0.1", TIDEGATE_PORT=port
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _await_ready(running, url, log)
            process = coordinator_process(running)
            assert process.uids() == (UID, UID, UID)
            with httpx.Client(base_url=url, timeout=30, headers={"Authorization": f"Bearer {key}"}) as http:
                rules = {"policy": {"type": "limiting_lag", "lag_ms": 10}}
                http.put("/v1/jobs/j", json=rules, headers={"If-None-Match": "*"}).raise_for_status()
                report = {"substreams": ["a"], "max_event_times": [100]}
                assert http.post("/v1/jobs/j:report", json=report).json()["watermark"] == 90
            health = config["Healthcheck"]["Test"]
            assert health[0] == "CMD"
            container.run(*(part.replace(":8000/", f":{port}/") for part in health[1:]))
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0, log.read_text()
            assert time.monotonic() - began < 60
        finally:
            if running.poll() is None:
                for left in psutil.Process(running.pid).children(recursive=True):
                    left.kill()
                running.kill()
            running.wait()
        # The image has no pip, and its user cannot write to the installation.
        assert "pip" not in container.run("ls", "/opt/tidegate/bin").split()
        assert container.run("find", "/opt/tidegate", "-writable", "-not", "-type", "l") == ""


def _refused(call: object) -> str:
    assert callable(call)
    with pytest.raises(AssertionError) as refused:
        call()
    return str(refused.value)


def _await_ready(running: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert running.poll() is None, log.read_text()
        try:
            if httpx.get(f"{url}/readyz", timeout=10).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def test_the_spark_image_contains_the_client(buildah: Buildah, flights_image: str) -> None:
    """The image `flights` is built on `spark`, so one test covers both."""
    with buildah.container(flights_image) as container:
        assert container.config["User"] == f"{UID}:{UID}"
        assert container.run("id", "-u") == str(UID)
        assert container.run("sh", "-c", "cd /data && touch it && rm it") == "", (
            "the user must be able to write to the volume"
        )
        demo = ", ".join(f"examples.flights.{path.stem}" for path in (ROOT / "examples" / "flights").glob("[a-z]*.py"))
        versions = f"import tidegate_spark.testing, {demo}, pyspark; print(pyspark.__version__)"
        version = container.run("python3", "-c", versions)
        assert f"pyspark=={version} " in (ROOT / "deploy" / "locks" / "spark.lock").read_text()
        work = "from pyspark.sql import SparkSession as S; print(S.builder.getOrCreate().range(7).count())"
        assert container.run("python3", "-c", work, SPARK_LOCAL_IP="127.0.0.1").splitlines()[-1] == "7"


def test_the_base_image_is_a_build_argument() -> None:
    """PYTHON_IMAGE can name an image in a private registry or on another Debian."""
    text = (ROOT / "Dockerfile").read_text()
    bases = [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]
    stages = {line.split()[-1] for line in text.splitlines() if line.startswith("FROM ")}
    assert {base for base in bases if base not in stages} == {"${PYTHON_IMAGE}"}
    assert BASE not in text
