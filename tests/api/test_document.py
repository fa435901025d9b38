"""The OpenAPI document is what clients are built from: it must be the one of this code."""

import json
import string
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from tests.support.api import DOCUMENT
from tidegate.app import create_app
from tidegate.settings import Settings
from tidegate.web.bodies import BODIES


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


Schema = dict[str, Any]
OPERATIONS = [
    (f"{method} {path}", operation)
    for path, operations in json.loads(DOCUMENT.read_text())["paths"].items()
    for method, operation in operations.items()
]
SCHEMAS: dict[str, Schema] = json.loads(DOCUMENT.read_text())["components"]["schemas"]


def is_prose(text: str | None) -> bool:
    """Whether a text is a sentence or a title, as people write it."""
    return text is not None and text[:1] in string.ascii_uppercase + "`" and " " in text


@pytest.mark.parametrize("operation", [operation for _, operation in OPERATIONS], ids=[name for name, _ in OPERATIONS])
def test_every_operation_is_described_and_has_examples(operation: Schema) -> None:
    """A reader must see what a call is for, and what it looks like, without trying it."""
    assert is_prose(operation["summary"]) and not operation["summary"].endswith(".")
    assert operation["summary"] != operation["operationId"].replace("_", " ").title()
    assert is_prose(operation["description"]) and operation["description"].endswith(".")
    for parameter in operation.get("parameters", ()):
        assert is_prose(parameter.get("description")), parameter["name"]
        assert "example" in parameter, parameter["name"]
        check(parameter["example"], parameter["schema"])
    answers = [answer for status, answer in operation["responses"].items() if status != "204"]
    for message in (*answers, *filter(None, [operation.get("requestBody")])):
        for content in message["content"].values():
            check(content["example"], content["schema"])


def check(example: Any, schema: Schema) -> None:
    """Check that an example is one of the schema."""
    Draft202012Validator(schema | {"components": {"schemas": SCHEMAS}}).validate(example)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_property_is_described_and_has_an_example(name: str) -> None:
    """A unit or a meaning of null that has to be guessed is guessed wrong."""
    schema = SCHEMAS[name]
    assert is_prose(schema.get("description")) or "enum" in schema, name
    has_example = "examples" in schema
    for member, described in schema.get("properties", {}).items():
        # pydantic leaves out a description that is the one of the schema itself.
        target = SCHEMAS.get(described.get("$ref", "").rpartition("/")[2], {})
        assert is_prose(described.get("description", target.get("description"))), f"{name}.{member}"
        text = json.dumps(described)
        assert has_example or "examples" in described or '"$ref"' in text, f"{name}.{member} has no example"


def test_examples_of_bodies_are_taken(http: httpx.Client, job_name: str) -> None:
    """A reader copies them: a job is made of the example, and every call with a body takes its own."""
    bodies = {model.__name__: model for model in BODIES}
    for _, operation in OPERATIONS:
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None:
            bodies[content["schema"]["$ref"].rpartition("/")[2]].model_validate_json(json.dumps(content["example"]))
    [put_job] = [operation for _, operation in OPERATIONS if operation["operationId"] == "put_job"]
    config = put_job["requestBody"]["content"]["application/json"]["example"]
    created = http.put(f"/v1/jobs/{job_name}", json=config, headers={"If-None-Match": "*"})
    assert created.status_code == 201, created.text
