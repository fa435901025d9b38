"""The images, built from the Dockerfile and run with their own user, entry point, environment and health check."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.compose import described
from tests.support.engine import BASE, ROOT, Engine
from tests.support.ports import free_port
from tests.support.waiting import until
from tidegate.auth.keyring import create
from tidegate.auth.roles import Role

UID = 10001

# A test's timeout includes its fixtures. With an empty cache they take minutes.
pytestmark = pytest.mark.timeout(1800)


@contextmanager
def container(engine: Engine, *arguments: str) -> Iterator[str]:
    """Run a container in the background; yield its id, and remove it."""
    started = engine.docker("run", "--detach", *arguments)
    try:
        yield started
    finally:
        print(engine.docker("logs", started))
        engine.docker("rm", "--force", started)


def test_a_coordinator_serves_from_its_image(engine: Engine, coordinator_image: str, tmp_path: Path) -> None:
    """The entry point runs as the image's user, requires keys, becomes healthy and stops on SIGTERM."""
    keys, port = tmp_path / "keys.json", free_port()
    key = create(keys, "admin", Role.ADMIN, "")
    keys.chmod(0o644)
    config = engine.config(coordinator_image)
    assert (config["User"], config["Entrypoint"], config["StopSignal"]) == (f"{UID}:{UID}", ["tidegate"], "SIGTERM")
    with pytest.raises(AssertionError, match="the service has no keys"):
        engine.docker("run", "--rm", coordinator_image)
    options = ["--volume", f"{keys}:/keys.json:ro", "--env", "TIDEGATE_KEYS_FILE=/keys.json"]
    published = ["--network", "host", "--env", "TIDEGATE_HOST=127.0.0.1", "--env", f"TIDEGATE_PORT={port}"]
    with (
        container(engine, *options, *published, coordinator_image) as started,
        httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=30, headers={"Authorization": f"Bearer {key}"}
        ) as http,
    ):

        def ready() -> bool:
            assert engine.docker("inspect", "--format", "{{.State.Running}}", started) == "true"
            try:
                return http.get("/readyz").is_success
            except httpx.TransportError:
                return False

        until(ready, "the coordinator is ready")
        assert engine.docker("exec", started, "id", "-u") == str(UID)
        rules = {"policy": {"type": "limiting_lag", "lag_ms": 10}}
        http.put("/v1/jobs/j", json=rules, headers={"If-None-Match": "*"}).raise_for_status()
        report = {"substreams": ["a"], "max_event_times": [100]}
        assert http.post("/v1/jobs/j:report", json=report).json()["watermark"] == 90
        health = config["Healthcheck"]["Test"]
        assert health[0] == "CMD"
        engine.docker("exec", started, *(part.replace(":8000/", f":{port}/") for part in health[1:]))
        # The image has no pip, and its user cannot write to the installation.
        assert "pip" not in engine.docker("exec", started, "ls", "/opt/tidegate/bin").split()
        assert engine.docker("exec", started, "find", "/opt/tidegate", "-writable", "-not", "-type", "l") == ""
        began = time.monotonic()
        engine.docker("stop", "--time", "60", started)
        assert time.monotonic() - began < 60, "SIGTERM must stop the coordinator"
        assert engine.docker("inspect", "--format", "{{.State.ExitCode}}", started) == "0"


def test_folders_that_services_mount_are_empty(engine: Engine, coordinator_image: str, flights_image: str) -> None:
    """Docker copies the files of such a folder into a new volume, and fails if two containers do so at once."""
    mounted = {
        (definition["image"], volume.split(":")[1])
        for definition in described({})["services"].values()
        for volume in definition.get("volumes", [])
        if not volume.startswith(".") and definition["image"] in (coordinator_image, flights_image)
    }
    assert {target for _, target in mounted} >= {"/run/tidegate", "/data", "/secrets/coordinator"}
    for image, target in mounted:
        shell = f"[ ! -e {target} ] || find {target} -mindepth 1"
        assert engine.docker("run", "--rm", "--entrypoint", "sh", image, "-c", shell) == "", (image, target)


def test_the_spark_image_contains_the_client(engine: Engine, flights_image: str) -> None:
    """The image `flights` is built on `spark`, so one test covers both."""
    assert engine.config(flights_image)["User"] == f"{UID}:{UID}"

    def ran(*command: str) -> str:
        # Without a network, Spark finds the host's name in /etc/hosts only.
        local = ["--network", "none", "--env", "SPARK_LOCAL_IP=127.0.0.1"]
        return engine.docker("run", "--rm", *local, flights_image, *command)

    assert ran("sh", "-c", "cd /data && touch it && rm it && id -u") == str(UID), "the user can write to the volume"
    demo = ", ".join(f"examples.flights.{path.stem}" for path in (ROOT / "examples" / "flights").glob("[a-z]*.py"))
    # Tests, debug symbols and foreign libraries were removed from these packages.
    slimmed = "numpy.testing, pandas.testing, pyarrow.dataset, zstandard"
    version = ran(
        "python3", "-c", f"import tidegate_spark.testing, {slimmed}, {demo}, pyspark; print(pyspark.__version__)"
    )
    assert f"pyspark=={version} " in (ROOT / "deploy" / "locks" / "spark.lock").read_text()
    assert ran("python3", "-c", SPARK).splitlines()[-1] == "7"
    certificates = ran("keytool", "-list", "-cacerts", "-storepass", "changeit")
    assert certificates.count("trustedCertEntry") > 100, "Java needs certificates to download packages"


SPARK = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.config("spark.ui.enabled", False).getOrCreate()
print(spark.range(7).count())
# The native libraries of RocksDB and zstd, and the vector module
java = spark.sparkContext._jvm
java.org.rocksdb.RocksDB.loadLibrary()
java.com.github.luben.zstd.Zstd.compressBound(1)
java.java.lang.Class.forName("jdk.incubator.vector.IntVector")
"""


def test_images_are_no_larger_than_needed(engine: Engine, coordinator_image: str, flights_image: str) -> None:
    """An image that has packages twice, or the tests and the caches of packages, is larger than these limits."""
    for image, most_mb in ((coordinator_image, 75), (flights_image, 1000)):
        whole, base = (int(engine.docker("image", "inspect", "--format", "{{.Size}}", name)) for name in (image, BASE))
        assert (whole - base) / 1e6 < most_mb, image


def test_the_base_image_is_a_build_argument() -> None:
    """PYTHON_IMAGE can name an image in a private registry or on another Debian."""
    text = (ROOT / "Dockerfile").read_text()
    bases = [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]
    stages = {line.split()[-1] for line in text.splitlines() if line.startswith("FROM ")}
    assert {base for base in bases if base not in stages} == {"${PYTHON_IMAGE}"}
    assert BASE not in text
