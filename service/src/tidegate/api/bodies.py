"""Bodies, read once: pydantic validates the raw bytes (half the price of going by way of a dict).

FastAPI does not see these models that way, so :func:`body_of` names them for the OpenAPI document.
"""

import json
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect

from tidegate.api.problems import Problem
from tidegate.api.schemas.config import KINDS
from tidegate.api.schemas.types import FieldError

Body = TypeVar("Body", bound=BaseModel)

LONGEST_NUMBER = 20
"""Digits: longer ones are too large for anything."""

BODIES: list[type[BaseModel]] = []
"""Every model that some call takes as its body."""


async def read(request: Request, model: type[Body]) -> Body:
    """:raises Problem: naming the first field that is wrong, and how; all of them under ``errors``."""
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise Problem(400, "incomplete_body", "The body ended before it was whole.") from None
    try:
        return _validated(raw or b"{}", model)
    except ValidationError as error:
        raise invalid(error) from None


def _validated(raw: bytes, model: type[Body]) -> Body:
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        # A whole number is one however it is written, 1.0 or 1e3. Only here, so that what all send costs nothing.
        if not any(line["type"] == "int_type" and isinstance(line["input"], float) for line in error.errors()):
            raise
        whole = json.dumps(json.loads(raw, parse_float=_number))
        return model.model_validate_json(whole)


def _number(text: str) -> int | float:
    """Exactly: what a float would round to a whole number is none."""
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent beyond all bounds
        return float(text)
    return int(number) if number.adjusted() < LONGEST_NUMBER and number == number.to_integral_value() else float(text)


def invalid(error: ValidationError) -> Problem:
    """The problem for a body (or a query string) that does not validate."""
    found = []
    for line in error.errors(include_url=False, include_input=False)[:20]:
        cause = line.get("ctx", {}).get("error")
        field = cause.field if isinstance(cause, FieldError) else _field(line["loc"], line["type"])
        found.append({"field": field, "detail": _wording(line)})
    where = f"{found[0]['field']}: " if found[0]["field"] else ""
    return Problem(
        422, "invalid_request", where + found[0]["detail"], members={"field": found[0]["field"], "errors": found}
    )


def _wording(line: ErrorDetails) -> str:
    """In words of the request: pydantic's own are of models and tags."""
    match line["type"]:
        case "missing" | "union_tag_not_found":
            return "is missing"
        case "extra_forbidden":
            return "there is no such member"
        case "union_tag_invalid":
            return f"may be one of {line['ctx']['expected_tags']}"
        case "json_invalid":
            return f"this is no JSON ({line['ctx']['error']})"
        case _:
            return line["msg"].removeprefix("Value error, ")


def _field(place: tuple[int | str, ...], error: str) -> str:
    """A place as the client wrote it: pydantic also names which kind of policy or throttle it took it for."""
    parts = [str(part) for part in place if part not in KINDS]
    if error.startswith("union_tag"):
        parts.append("type")
    return ".".join(parts)


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """What ``openapi_extra`` says of a call that takes ``model`` as its body."""
    if model not in BODIES:
        BODIES.append(model)
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": not _may_be_empty(model), "content": {"application/json": {"schema": schema}}}}


def _may_be_empty(model: type[BaseModel]) -> bool:
    """No body is taken for ``{}``."""
    try:
        model.model_validate({})
    except ValidationError:
        return False
    return True


def answer(record: BaseModel, status: int = 200, *, whole: bool = True, **headers: str) -> Response:
    """``whole``: with all members; else without those that were not given."""
    return Response(record.model_dump_json(exclude_unset=not whole), status, headers, "application/json")
