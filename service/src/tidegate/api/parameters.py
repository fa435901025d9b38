"""Parameters that several calls share, and a check for unknown parameters."""

from typing import Annotated

from fastapi import Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from tidegate.domain.values import EXACT_DOUBLE, ID, NAME_OR_EMPTY
from tidegate.views.types import MAX_NAME_BYTES, Id
from tidegate.web.problems import Problem

QueryId = Annotated[
    Id, Path(json_schema_extra={"pattern": ID}, description="Name of the query.", examples=["departures"])
]
BatchId = Annotated[int, Path(ge=0, le=EXACT_DOUBLE.highest, description="Number of the batch.", examples=[41])]
SubstreamName = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=MAX_NAME_BYTES,
        description="Name of a substream. Omit it for the whole job.",
        examples=["HNL"],
    ),
]
SubstreamQuery = Annotated[
    str,
    Query(
        pattern=NAME_OR_EMPTY,
        description="Query of the substream. Empty for reports without batches.",
        examples=["departures"],
    ),
]


async def refuse_unknown(request: Request) -> None:
    """Refuse unknown parameters, so that a misspelled parameter is not ignored.

    Raises:
        Problem: If a parameter is unknown. The problem names the first such parameter.
    """
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = _parameters(route.dependant)
    for name in request.query_params:
        if name not in known:
            detail = f"unknown parameter; this call accepts: {', '.join(known) or 'none'}."
            raise Problem.of_field(name, detail)


def _parameters(dependant: Dependant) -> list[str]:
    """Return the query parameters of a call and of its dependencies."""
    names = [parameter.alias for parameter in dependant.query_params]
    return names + [name for dependency in dependant.dependencies for name in _parameters(dependency)]
