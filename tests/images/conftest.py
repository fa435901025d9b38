"""The store of images, and the images. Each is built once per session."""

from collections.abc import Iterator

import pytest

from tests.support.images import Buildah, cached_store


@pytest.fixture(scope="session")
def buildah() -> Iterator[Buildah]:
    with cached_store() as opened:
        yield opened


@pytest.fixture(scope="session")
def coordinator_image(buildah: Buildah) -> str:
    return buildah.build("coordinator")


@pytest.fixture(scope="session")
def flights_image(buildah: Buildah) -> str:
    return buildah.build("flights")
