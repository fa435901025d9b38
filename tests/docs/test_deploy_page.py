"""``docs/how-to/deploy.md``: variables, services, images and Redis URLs match the code."""

import re
from pathlib import Path

from tests.support.compose import described
from tidegate.settings import Settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
NOT_RUN = PAGE[PAGE.index("## What could not be run") :]


def test_all_variables_exist() -> None:
    settings = {f"TIDEGATE_{name.upper()}" for name in Settings.model_fields} | {"TIDEGATE_URL", "TIDEGATE_TOKEN"}
    assert set(re.findall(r"TIDEGATE_[A-Z_]+", PAGE)) <= settings
    demo = set(re.findall(r"DEMO_[A-Z_]+", (ROOT / "examples" / "flights" / "settings.py").read_text()))
    for page in (PAGE, (ROOT / "docker-compose.yml").read_text()):
        assert set(re.findall(r"DEMO_[A-Z_]+", page)) <= demo
    assert set(re.findall(r"DEMO_[A-Z_]+", (ROOT / "docs" / "demo.md").read_text())) == demo


def test_every_service_and_image_is_listed() -> None:
    """The section "What could not be run" lists every third-party service and image, and the base image."""
    for name, definition in described({})["services"].items():
        if not definition["image"].startswith("tidegate"):
            assert f"| `{name}`" in NOT_RUN or f", `{name}`" in NOT_RUN, name
            if name != "grafana":
                assert definition["image"].removeprefix("docker.io/").removeprefix("library/") in NOT_RUN, name
    (base,) = re.findall(r"PYTHON_IMAGE=docker.io/library/(\S+)", (ROOT / "Dockerfile").read_text())
    assert base in NOT_RUN


def test_the_redis_schemes_are_listed() -> None:
    ways = set(re.findall(r"^ *\| `(\w[\w+]*)://", PAGE, re.MULTILINE))
    assert ways == {"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "unix"}
