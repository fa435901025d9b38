"""``make dist``: the bytes, the content and the metadata of the wheels and sdists."""

import io
import tarfile
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

import tidegate
from tests.packages.building import DISTRIBUTIONS, FILE_NAMES, ROOT, build, files

VERSION = tidegate.__version__
BY_FOLDER = pytest.mark.parametrize("folder", DISTRIBUTIONS)


def wheel(distributions: dict[str, bytes], folder: str) -> dict[str, bytes]:
    """Return the files of a wheel by name."""
    with ZipFile(io.BytesIO(distributions[f"{FILE_NAMES[folder]}-{VERSION}-py3-none-any.whl"])) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_build_of_another_copy_has_the_same_bytes(distributions: dict[str, bytes], tmp_path: Path) -> None:
    """The path, the modification times and the permissions of the files have no effect."""
    again = build(tmp_path / "elsewhere" / "copy", 1_500_000_000, 0o077)
    assert len(again) == 6
    assert again.keys() == distributions.keys()
    assert [name for name in again if again[name] != distributions[name]] == []


@BY_FOLDER
def test_a_wheel_contains_all_files_of_its_package_and_no_others(distributions: dict[str, bytes], folder: str) -> None:
    """The Lua functions, the templates and the static files are in the wheel, and the tests are not."""
    sources = {name.removeprefix(f"{folder}/src/"): ROOT / name for name in files(f"{folder}/src")}
    contents = wheel(distributions, folder)
    packaged = {name: content for name, content in contents.items() if ".dist-info/" not in name}
    assert packaged == {name: path.read_bytes() for name, path in sources.items()}
    assert f"{DISTRIBUTIONS[folder]}/py.typed" in packaged
    information = f"{FILE_NAMES[folder]}-{VERSION}.dist-info"
    assert contents[f"{information}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


@BY_FOLDER
def test_an_sdist_contains_the_committed_files(distributions: dict[str, bytes], folder: str) -> None:
    name = f"{FILE_NAMES[folder]}-{VERSION}"
    with tarfile.open(fileobj=io.BytesIO(distributions[f"{name}.tar.gz"])) as archive:
        contents = {member.name.removeprefix(f"{name}/") for member in archive.getmembers()}
    assert contents == {path.removeprefix(f"{folder}/") for path in files(folder)} | {"PKG-INFO"}


@BY_FOLDER
def test_the_description_is_the_readme_and_has_no_relative_link(distributions: dict[str, bytes], folder: str) -> None:
    """A package index shows the description without the repository. `make dist` checks the rest of the metadata."""
    metadata = wheel(distributions, folder)[f"{FILE_NAMES[folder]}-{VERSION}.dist-info/METADATA"]
    message = message_from_bytes(metadata)
    description = message.get_payload(decode=True)
    assert description == (ROOT / folder / "README.md").read_bytes()
    assert b"](" not in description.replace(b"](https://", b"")
    assert message["License-Expression"] == "Apache-2.0"
