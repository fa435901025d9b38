"""The OpenAPI document of FastAPI, extended with request bodies, errors, roles and examples."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from tidegate import __version__
from tidegate.http.bodies import BodyOf
from tidegate.http.problems import ERRORS
from tidegate.http.request import ROLES

Schema = dict[str, Any]

DESCRIPTION = "Tidegate coordinates event-time watermarks of Spark jobs."
REFERENCE = "#/components/schemas/"
PROBLEM: Schema = {
    "type": "object",
    "description": "An error (RFC 9457). Further members depend on the code.",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {
            "type": "string",
            "description": "`urn:tidegate:problem:` and the code.",
            "examples": ["urn:tidegate:problem:job_not_found"],
        },
        "title": {
            "type": "string",
            "description": "Title of the error code.",
            "examples": [ERRORS["job_not_found"].title],
        },
        "status": {
            "type": "integer",
            "description": "HTTP status of the answer.",
            "examples": [ERRORS["job_not_found"].status],
        },
        "code": {"type": "string", "description": "Stable code of the error.", "examples": ["job_not_found"]},
        "detail": {
            "type": "string",
            "description": "The error, and what to change.",
            "examples": ["There is no such job; create it with a PUT."],
        },
        "field": {
            "type": "string",
            "description": "Invalid member or parameter of the request.",
            "examples": ["lag_ms"],
        },
    },
}


def openapi_document(app: FastAPI, calls: Sequence[APIRoute]) -> Schema:
    """Return the OpenAPI document of all calls. The settings do not affect the document."""
    document = get_openapi(title="Tidegate", version=__version__, description=DESCRIPTION, routes=app.routes)
    models = {model for call in calls if (model := body_model(call)) is not None}
    _, bodies = models_json_schema([(model, "validation") for model in models], ref_template=f"{REFERENCE}{{model}}")
    schemas: dict[str, Schema] = document["components"]["schemas"] | bodies["$defs"] | {"Problem": PROBLEM}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"] = {
        "schemas": dict(sorted(schemas.items())),
        "securitySchemes": {
            "key": {
                "type": "http",
                "scheme": "bearer",
                "description": "API key. Not required if the coordinator has no keys.",
            }
        },
    }
    by_name = {call.name: call for call in calls}
    for path in document["paths"].values():
        for operation in path.values():
            _complete(operation, by_name[operation["operationId"]], schemas)
    return document


def _complete(operation: Schema, call: APIRoute, schemas: Mapping[str, Schema]) -> None:
    """Add the body, roles, errors and examples to an operation."""
    model = body_model(call)
    if model is not None:
        operation["requestBody"] = _body(model)
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _without_null(parameter["schema"])
        parameter.setdefault("example", example_of(parameter["schema"], schemas))
        parameter["schema"].pop("examples", None)
        parameter.pop("examples", None)
    roles = [str(role) for role in ROLES[call.endpoint]]
    operation["security"] = [{"key": roles}] if roles else []
    operation["responses"].pop("422", None)
    operation["responses"]["default"] = {
        "description": "An error.",
        "content": {"application/problem+json": {"schema": {"$ref": f"{REFERENCE}Problem"}}},
    }
    for message in (operation.get("requestBody", {}), *operation["responses"].values()):
        for content in message.get("content", {}).values():
            content.setdefault("example", example_of(content["schema"], schemas))


def body_model(call: APIRoute) -> type[BaseModel] | None:
    """Return the model of the body of a call, if it has one."""
    dependencies = (dependency.call for dependency in call.dependant.dependencies)
    return next((dependency.model for dependency in dependencies if isinstance(dependency, BodyOf)), None)


def _body(model: type[BaseModel]) -> Schema:
    try:
        model.model_validate({})
        required = False
    except ValidationError:
        required = True
    schema = {"$ref": f"{REFERENCE}{model.__name__}"}
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _without_null(schema: Schema) -> Schema:
    """Return the schema of an optional parameter. A client can omit the parameter, but cannot send null."""
    choices: list[Schema] = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    return choices[0] | {member: value for member, value in schema.items() if member != "anyOf"}


def example_of(schema: Schema, schemas: Mapping[str, Schema]) -> Any:
    """Return an example of a schema, composed of the examples of its members."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].removeprefix(REFERENCE)], schemas)
    for member in ("anyOf", "oneOf", "allOf"):
        if member in schema and "properties" not in schema:
            return example_of(schema[member][0], schemas)
    if "properties" in schema:
        return {name: example_of(member, schemas) for name, member in schema["properties"].items()}
    if "items" in schema:
        return [example_of(schema["items"], schemas)]
    return schema.get("const", schema.get("default"))
