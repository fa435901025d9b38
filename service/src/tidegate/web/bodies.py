"""Bodies of requests and answers.

pydantic validates the raw bytes of a body, at half the price of going through a dictionary. FastAPI does not see these
models, so :func:`body_of` declares them for the OpenAPI document.
"""

import json
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect
from starlette.status import HTTP_200_OK

from tidegate.reads.config import KINDS
from tidegate.reads.types import FieldError
from tidegate.web.problems import Problem

Body = TypeVar("Body", bound=BaseModel)

MAX_DIGITS = 20
"""Longer numbers are out of range in every field."""
MAX_ERRORS = 20
"""Number of errors that a problem lists."""

BODIES: list[type[BaseModel]] = []
"""Every model that a call takes as its body."""


async def raw_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        Problem: If the client disconnects before the end of the body.
    """
    try:
        return await request.body()
    except ClientDisconnect:
        raise Problem("incomplete_body", "The connection ended within the body; send the request again.") from None


async def read_body(request: Request, model: type[Body]) -> Body:
    """Return the validated body of a request. An empty body counts as ``{}``.

    Raises:
        Problem: If the body is not valid. It names the first invalid field, and lists all of them under ``errors``.
    """
    raw = await raw_body(request)
    try:
        return _validated(raw or b"{}", model)
    except ValidationError as error:
        raise invalid_body(error) from None


def _validated(raw: bytes, model: type[Body]) -> Body:
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        # Whole numbers may be written as 1.0 or 1e3. They are parsed here, so that ordinary bodies are not slower.
        if not any(line["type"] == "int_type" and isinstance(line["input"], float) for line in error.errors()):
            raise
        return model.model_validate_json(json.dumps(json.loads(raw, parse_float=_number)))


def _number(text: str) -> int | float:
    """Return an integer only if the text is exactly one; a float would round."""
    try:
        number = Decimal(text)
    except InvalidOperation:  # the exponent is out of range
        return float(text)
    return int(number) if number.adjusted() < MAX_DIGITS and number == number.to_integral_value() else float(text)


def invalid_body(error: ValidationError) -> Problem:
    """Return the problem of a body that is not valid."""
    errors = []
    for line in error.errors(include_url=False, include_input=False)[:MAX_ERRORS]:
        cause = line.get("ctx", {}).get("error")
        field = cause.field if isinstance(cause, FieldError) else _field(line["loc"], line["type"])
        errors.append({"field": field, "detail": _detail(line)})
    first = errors[0]
    detail = f"{first['field']}: {first['detail']}" if first["field"] else first["detail"]
    return Problem("invalid_request", detail, members={"field": first["field"], "errors": errors})


def _detail(line: ErrorDetails) -> str:
    """Return an error in terms of the request; pydantic's own texts are about models and tags."""
    match line["type"]:
        case "missing" | "union_tag_not_found":
            return "is missing"
        case "extra_forbidden":
            return "is not a known member"
        case "union_tag_invalid":
            return f"must be one of {line['ctx']['expected_tags']}"
        case "json_invalid":
            return f"the body is not valid JSON ({line['ctx']['error']})"
        case _:
            return line["msg"].removeprefix("Value error, ")


def _field(place: tuple[int | str, ...], error: str) -> str:
    """Return a place as the client wrote it, without the kinds of policies that pydantic adds."""
    parts = [str(part) for part in place if part not in KINDS]
    if error.startswith("union_tag"):
        parts.append("type")
    return ".".join(parts)


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a call that takes ``model`` as its body."""
    if model not in BODIES:
        BODIES.append(model)
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": _is_required(model), "content": {"application/json": {"schema": schema}}}}


def _is_required(model: type[BaseModel]) -> bool:
    try:
        model.model_validate({})
    except ValidationError:
        return True
    return False


def json_answer(record: BaseModel, status: int = HTTP_200_OK, **headers: str) -> Response:
    """Return an answer with all members of a record."""
    return Response(record.model_dump_json(), status, headers, "application/json")


def compact_answer(record: BaseModel) -> Response:
    """Return an answer with the members of a record that are set."""
    return Response(record.model_dump_json(exclude_unset=True), media_type="application/json")
