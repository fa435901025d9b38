"""The committed OpenAPI document is valid, complete and generated from this code."""

import json
import string
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from tests.support.api import DOCUMENT
from tests.support.bodies import body_models
from tidegate.app import create_app
from tidegate.settings import Settings


def test_the_committed_document_is_up_to_date() -> None:
    """`make openapi` generates the document."""
    document = create_app(Settings(), "redis://localhost").openapi()
    assert json.loads(DOCUMENT.read_text()) == document


def test_the_document_is_valid_openapi() -> None:
    validate(json.loads(DOCUMENT.read_text()))


def test_references_resolve_and_errors_are_declared() -> None:
    """Every reference resolves, and every operation declares problem+json as its default response."""
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
    """Return whether a text starts like a sentence or a title and has more than one word."""
    return text is not None and text[:1] in string.ascii_uppercase + "`" and " " in text


@pytest.mark.parametrize("operation", [operation for _, operation in OPERATIONS], ids=[name for name, _ in OPERATIONS])
def test_every_operation_is_described_and_has_examples(operation: Schema) -> None:
    """Summary, description, parameters, body and responses are documented, and each example matches its schema."""
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
    """Check that an example is valid under the schema."""
    Draft202012Validator(schema | {"components": {"schemas": SCHEMAS}}).validate(example)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_property_is_described_and_has_an_example(name: str) -> None:
    schema = SCHEMAS[name]
    assert is_prose(schema.get("description")) or "enum" in schema, name
    has_example = "examples" in schema
    for member, described in schema.get("properties", {}).items():
        # pydantic omits a description that equals the description of the referenced schema.
        target = SCHEMAS.get(described.get("$ref", "").rpartition("/")[2], {})
        assert is_prose(described.get("description", target.get("description"))), f"{name}.{member}"
        text = json.dumps(described)
        assert has_example or "examples" in described or '"$ref"' in text, f"{name}.{member} has no example"


def test_example_bodies_are_accepted(http: httpx.Client, job_name: str) -> None:
    """Every example body passes its model, and the example configuration creates a job."""
    bodies = {model.__name__: model for model in body_models()}
    for _, operation in OPERATIONS:
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None:
            bodies[content["schema"]["$ref"].rpartition("/")[2]].model_validate_json(json.dumps(content["example"]))
    [configure] = [operation for _, operation in OPERATIONS if operation["operationId"] == "configure"]
    config = configure["requestBody"]["content"]["application/json"]["example"]
    created = http.put(f"/v1/jobs/{job_name}", json=config, headers={"If-None-Match": "*"})
    assert created.status_code == 201, created.text
