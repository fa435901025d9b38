"""The models of request bodies."""

from fastapi.routing import APIRoute
from pydantic import BaseModel

from tidegate.app import RESOURCES
from tidegate.http.openapi import body_model


def body_models() -> set[type[BaseModel]]:
    """Return the models of the bodies of all calls."""
    routes = [route for resource in RESOURCES for route in resource.router.routes if isinstance(route, APIRoute)]
    models = {model for route in routes if (model := body_model(route)) is not None}
    assert len(models) > 10
    return models
