"""The OpenAPI document is what clients are built from: it must be the one of this code."""

import json

from openapi_spec_validator import validate

from tests.support.api import DOCUMENT
from tidegate.app import create_app
from tidegate.settings import Settings


def test_the_kept_document_is_the_one_of_this_code() -> None:
    """`make openapi` writes it again."""
    document = create_app(Settings(), "redis://localhost").openapi()
    assert json.loads(DOCUMENT.read_text()) == document


def test_the_document_is_one() -> None:
    """As the specification of OpenAPI has it."""
    validate(json.loads(DOCUMENT.read_text()))


def test_every_reference_is_there_and_every_call_says_how_it_fails() -> None:
    """A reference to nothing breaks every generator of clients."""
    text = DOCUMENT.read_text()
    document = json.loads(text)
    for part in text.split('"$ref": "#/components/schemas/')[1:]:
        assert part.split('"')[0] in document["components"]["schemas"]
    for path in document["paths"].values():
        for call in path.values():
            assert call["responses"]["default"]["content"].keys() == {"application/problem+json"}
