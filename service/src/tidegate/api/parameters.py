"""Parameters of the query string that no call takes are refused: a misspelt limit must not be a limit that is off."""

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from tidegate.api.problems import Problem


async def known_parameters(request: Request) -> None:
    """:raises Problem: naming the first parameter that the call does not take."""
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = _known(route.dependant)
    for name in request.query_params:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise Problem(
                422, "invalid_request", f"{name}: this call has no such parameter; {takes}.", members={"field": name}
            )


def _known(dependant: Dependant) -> list[str]:
    """Those of a call, and of what it depends on."""
    found = [parameter.alias for parameter in dependant.query_params]
    return found + [name for other in dependant.dependencies for name in _known(other)]
