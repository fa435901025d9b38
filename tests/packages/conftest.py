"""The wheels and sdists of the work tree, and an environment with the wheels. Each is built once per session."""

from pathlib import Path

import pytest

from tests.packages.building import build, install


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the contents of the wheels and sdists, by file name."""
    return build(tmp_path_factory.mktemp("build") / "copy", 1_000_000_000, 0o022)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory, distributions: dict[str, bytes]) -> Path:
    """Return a virtual environment with the wheels of coordinator and client, and their declared dependencies."""
    directory = tmp_path_factory.mktemp("installed")
    requirements = []
    for name, content in distributions.items():
        if name.endswith(".whl") and name.startswith("tidegate"):
            (directory / name).write_bytes(content)
            extras = "[spark,java]" if name.startswith("tidegate_spark-") else ""
            requirements.append(f"{directory / name}{extras}")
    install(directory / "environment", *requirements)
    return directory / "environment"
