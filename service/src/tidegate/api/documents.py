"""The OpenAPI document: FastAPI's, with the bodies that are read past it."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from tidegate import __version__
from tidegate.api.access import ROLES
from tidegate.api.bodies import BODIES

PROBLEM = {
    "type": "object",
    "description": "An error (RFC 9457). Further members depend on the type.",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string", "description": "urn:tidegate:problem:<code>"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string", "description": "what to change, in one sentence"},
        "field": {"type": "string", "description": "the offending field of the request"},
    },
}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """What a parameter may be: it can be left out, but there is no way to send a null."""
    choices: list[dict[str, Any]] = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    return choices[0] | {member: value for member, value in schema.items() if member != "anyOf"}


def openapi(app: FastAPI) -> dict[str, Any]:
    """The document of all calls; the same for the same version, whatever the settings."""
    document = get_openapi(
        title="Tidegate", version=__version__, description="A watermark coordinator for Spark.", routes=app.routes
    )
    _, bodies = models_json_schema(
        [(body, "validation") for body in BODIES], ref_template="#/components/schemas/{model}"
    )
    schemas = document["components"]["schemas"]
    schemas.update(bodies["$defs"])
    schemas["Problem"] = PROBLEM
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    document["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "not asked for where the coordinator has no keys"}
    }
    roles = {endpoint.__name__: needed for endpoint, needed in ROLES.items()}
    for path in document["paths"].values():
        for call in path.values():
            needed = roles[call["operationId"]]
            for parameter in call.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
            call["security"] = [{"key": list(needed)}] if needed else []
            call["responses"].pop("422", None)
            call["responses"]["default"] = {"description": "What was wrong", "content": content}
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    return document
