"""The members and parameters in the OpenAPI document, as rows of tables."""

import json
from collections.abc import Iterator
from pathlib import Path

from docs.reference.tables import Row, by_meaning, code

DOCUMENT = json.loads((Path(__file__).parents[2] / "openapi" / "tidegate.v1.json").read_text())


def members() -> list[Row]:
    return by_meaning(_members())


def parameters() -> list[Row]:
    return by_meaning(_parameters())


def _members() -> Iterator[tuple[str, str, str]]:
    schemas = DOCUMENT["components"]["schemas"]
    for name, schema in schemas.items():
        for member, described in schema.get("properties", {}).items():
            # A member without a description gets the description of the schema to which it refers.
            referenced = schemas.get(described.get("$ref", "").rpartition("/")[2], {})
            yield code(member), name, described.get("description") or referenced["description"]


def _parameters() -> Iterator[tuple[str, str, str]]:
    for operations in DOCUMENT["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                name = f"{code(parameter['name'])} ({parameter['in']})"
                yield name, operation["operationId"], parameter["description"]
