"""The page of the REST API, from the OpenAPI document."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.tools.reference.tables import code, table

DOCUMENT: dict[str, Any] = json.loads((Path(__file__).parents[3] / "openapi" / "tidegate.v1.json").read_text())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
HEAD = """\
# REST API

All calls of the service. [`openapi/tidegate.v1.json`](../../openapi/tidegate.v1.json) is the OpenAPI document of this
page. A coordinator serves it at `/v1/openapi.json`, and `tidegate openapi` prints it.

- Bodies and answers are JSON. Times are Unix milliseconds, and durations are milliseconds.
- Ids (jobs, queries, checkpoints, runs, holds) match `[A-Za-z0-9._~-]{1,128}`, but
  not `.` or `..` alone. The name of a substream is any printable
  string up to 200 bytes. It is sent in bodies and query strings, never in paths.
- A refused call changes nothing, and gets a problem document ([errors](errors.md)).
- [Keys](../how-to/secure.md#keys) have roles, which allow calls.
"""
GROUPS = {
    "jobs": "Jobs",
    "reports": "Reports and batches",
    "state": "State",
    "actions": "Actions",
    "keys": "Keys",
    "health": "Health",
}
"""Titles of the sections, by tag."""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for tag, title in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [text for operation_tag, text in _operations() if operation_tag == tag]
    parts.append("## Schemas\n")
    parts += [_schema(name, schema) for name, schema in sorted(SCHEMAS.items()) if schema.get("properties")]
    return "\n".join(parts)


def _operations() -> Iterator[tuple[str, str]]:
    """Yield the tag and the text of each operation."""
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            yield operation["tags"][0], _operation(f"{method.upper()} {path}", operation)


def _operation(call: str, operation: dict[str, Any]) -> str:
    lines = [f"### {operation['summary']}\n", f"```http\n{call}\n```\n", operation["description"], ""]
    if parameters := operation.get("parameters"):
        rows = [
            (code(parameter["name"]), parameter["in"], _type(parameter["schema"]), parameter["description"])
            for parameter in parameters
        ]
        lines += [table(("parameter", "in", "type", "meaning"), rows), ""]
    if body := operation.get("requestBody"):
        lines.append(f"Body: {_content(body)}.")
    answers = [
        f"{status} {_content(answer)}".strip()
        for status, answer in operation["responses"].items()
        if status != "default"
    ]
    lines.append(f"Answer: {', or '.join(answers)}.\n")
    return "\n".join(lines)


def _content(body: dict[str, Any]) -> str:
    contents = body.get("content", {})
    if "application/json" in contents:
        return _type(contents["application/json"]["schema"])
    return ", ".join(map(code, contents))


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (
            code(member) + ("" if member in required or "default" not in described else " (optional)"),
            _type(described),
            _description(described),
        )
        for member, described in schema["properties"].items()
    ]
    described = f"{schema['description']}\n\n" if "description" in schema else ""
    return f"### {name}\n\n{described}{table(('member', 'type', 'meaning'), rows)}\n"


def _description(described: dict[str, Any]) -> str:
    """Return the description of a member, or of the schema to which it refers."""
    return str(described.get("description") or SCHEMAS[_named(described)]["description"])


def _type(schema: dict[str, Any]) -> str:
    """Return the type of a schema, with links to named schemas."""
    if "$ref" in schema:
        name = _named(schema)
        if not SCHEMAS[name].get("properties"):
            return _type(SCHEMAS[name])
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(choice) for choice in choices))
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(str(value)) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _named(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]
