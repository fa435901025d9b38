"""The version of a release: of the distributions and of the newest heading of the changelog."""

import re
import tomllib
from pathlib import Path

import pytest

import tidegate
import tidegate_spark

ROOT = Path(__file__).parents[2]


def test_all_distributions_have_the_version_of_the_newest_release() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    provider = (ROOT / "integrations/airflow/src/tidegate_airflow/__init__.py").read_text()
    assert tidegate.__version__ == tidegate_spark.__version__ == newest[1]
    assert f'\n__version__ = "{newest[1]}"\n' in provider


@pytest.mark.parametrize("distribution", ["service", "spark_client", "integrations/airflow"])
def test_a_package_gets_its_version_from_the_code(distribution: str) -> None:
    """pyproject.toml has no version, so there is one place to change at a release."""
    pyproject = tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())
    assert pyproject["project"]["dynamic"] == ["version"] and "version" not in pyproject["project"]
    assert (ROOT / distribution / pyproject["tool"]["hatch"]["version"]["path"]).is_file()
