"""Models of the JSON configuration of a job. The declarations in the domain determine their members."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_type_hints

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from tidegate.domain import config as domain
from tidegate.domain.calendar import Frames, Unit
from tidegate.domain.config import THROTTLES, NoThrottle, Throttle
from tidegate.domain.errors import InvalidConfig, StateDamaged
from tidegate.domain.policies import POLICIES, Policy
from tidegate.domain.values import EXACT_DOUBLE, declarations
from tidegate.views.types import STORED, Id, Request, Text

Model = TypeVar("Model", bound=Request)
STRATEGIES: tuple[type[Policy | Throttle], ...] = (*POLICIES, *THROTTLES)
KINDS = frozenset(strategy.type for strategy in STRATEGIES)
"""Values of ``type`` of policies and throttles. No field has one of these names."""


class Strategy(Request):
    """A policy or a throttle. ``strategy`` is its domain class; subclasses add ``type`` and the parameters."""

    strategy: ClassVar[type[Policy | Throttle]]

    def build(self) -> Any:
        """Return the policy or the throttle.

        Raises:
            InvalidConfig: If its parameters contradict each other.
        """
        return self.strategy(**self.model_dump(exclude={"type"}))


class _OneOf:
    """The schema of a member whose ``type`` selects one of several strategies."""

    def __init__(self, strategies: Iterable[type[Policy | Throttle]]) -> None:
        models = tuple(_model_of(strategy) for strategy in strategies)
        self._schema = Annotated[Union[models], Field(discriminator="type")]  # noqa: UP007

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(self._schema)


def _numbers(of: type) -> dict[str, Any]:
    """Return model members for the declared numbers of a dataclass."""
    members = {}
    hints, defaults = get_type_hints(of), {each.name: each.default for each in fields(of)}
    for name, declared in declarations(of).items():
        hint = hints[name]
        highest = EXACT_DOUBLE.highest if declared.maximum is None else declared.maximum
        bounds = Field(strict=True, ge=declared.minimum, le=highest)
        number = hint if isinstance(hint, type) else next(each for each in get_args(hint) if each is not NoneType)
        value: Any = Annotated[number, bounds] if number is hint else Annotated[number, bounds] | None
        default = declared.request_default or (... if defaults[name] is MISSING else defaults[name])
        members[name] = (value, Field(default, description=declared.description, examples=[declared.example]))
    return members


def _model_of(strategy: type[Policy | Throttle]) -> type[Strategy]:
    summary = inspect.cleandoc(strategy.__doc__ or "").split("\n\n")[0].replace("``", "`")
    kind: Any = (Literal[strategy.type], Field(description="Kind of the policy or throttle.", examples=[strategy.type]))
    model = create_model(strategy.__name__, __base__=Strategy, __doc__=summary, type=kind, **_numbers(strategy))
    model.strategy = strategy
    return model


def _component(name: str, **members: Any) -> Callable[[type[Model]], type[Model]]:
    """Add members to a model, and give it the name of its component in the OpenAPI document."""

    def named(model: type[Model]) -> type[Model]:
        component = create_model(name, __base__=model, __doc__=model.__doc__, **members)
        component.__qualname__ = model.__qualname__  # the name under which pickle finds the class
        return component

    return named


AnyPolicy = Annotated[Strategy, _OneOf(POLICIES)]
AnyThrottle = Annotated[Strategy, _OneOf(THROTTLES)]


@_component("Override")
class OverrideDocument(Request):
    """A policy for the substreams whose names match a pattern."""

    substreams: Text = Field(
        min_length=1,
        max_length=200,
        description=f"Pattern of substream names. `*` stands for any characters, at most {domain.MAX_WILDCARDS} times.",
        examples=["HNL*"],
    )
    policy: AnyPolicy = Field(description="Policy of these substreams.")


@_component("FramesDeclaration", **_numbers(Frames))
class FramesDocument(Request):
    """The frames of a job: intervals of event time. The coordinator records whether each interval is complete."""

    every: Unit | Annotated[int, Field(strict=True, ge=1, le=EXACT_DOUBLE.highest)] = Field(
        description="Length of a frame: `hour`, `day`, `month`, or a number of milliseconds.", examples=["hour"]
    )
    time_zone: Text | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Name of the time zone of days and months, as in the IANA database. Null: UTC.",
        examples=["America/New_York"],
    )

    @field_validator("every", mode="wrap")
    @classmethod
    def _check_every(cls, value: object, check: ValidatorFunctionWrapHandler) -> object:
        try:
            return check(value)
        except ValidationError:  # has one error for each kind of length
            raise ValueError("must be 'hour', 'day', 'month', or a positive number of milliseconds") from None

    def build(self) -> Frames:
        """Return the declaration.

        Raises:
            InvalidConfig: If its parameters contradict each other, or the time zone is unknown.
        """
        return Frames(**self.model_dump())


@_component("JobConfig", **_numbers(domain.JobConfig))
class ConfigDocument(Request):
    """The complete configuration of a job.

    A change replaces the whole configuration, so an omitted member takes its default. Limits are in milliseconds of
    processing time, and `max_skew_ms` of event time. `arrival_target` needs `frames`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"frames": {"type": "object"}}, "required": ["frames"]},
                {"properties": {"arrival_target": {"type": "null"}}},
            ]
        }
    )

    policy: AnyPolicy = Field(description="Policy of substreams that no override matches.")
    overrides: list[OverrideDocument] = Field(
        default=[],
        max_length=domain.MAX_OVERRIDES,
        description="Policies by substream name. The first match applies.",
        examples=[[{"substreams": "HNL*", "policy": {"type": "limiting_lag", "lag_ms": 7200000}}]],
    )
    throttle: AnyThrottle = Field(
        default={"type": NoThrottle.type},
        validate_default=True,
        description="Rule that decides how often the coalesced watermark moves.",
    )
    expected_queries: list[Id] = Field(
        default=[],
        max_length=domain.MAX_EXPECTED_QUERIES,
        json_schema_extra={"uniqueItems": True},
        description="Queries that hold the watermark until they have substreams.",
        examples=[["departures"]],
    )

    frames: FramesDocument | None = Field(
        default=None,
        description="Frames of the job. Null: no frames. A change of `every`, `offset_ms` or `time_zone` starts new "
        "frames.",
        examples=[{"every": "hour"}],
    )

    _config: domain.JobConfig = PrivateAttr()

    @model_validator(mode="after")
    def _build_config(self) -> Self:
        self._config = domain.JobConfig(
            policy=self.policy.build(),
            throttle=self.throttle.build(),
            overrides=tuple(domain.Override(each.substreams, each.policy.build()) for each in self.overrides),
            expected_queries=tuple(self.expected_queries),
            frames=None if self.frames is None else self.frames.build(),
            **{name: getattr(self, name) for name in declarations(domain.JobConfig)},
        )
        return self

    @property
    def config(self) -> domain.JobConfig:
        """The configuration as a domain object."""
        return self._config

    def __reduce__(self) -> tuple[Any, ...]:
        """Validate the document again where it is unpickled, because pickle does not find the models of policies."""
        return type(self).model_validate, (self.model_dump(),)


def parsed_config(document: Any) -> domain.JobConfig:
    """Parse a JSON object into a configuration.

    Raises:
        InvalidConfig: If the object is not a valid configuration. The error has the first invalid field.
    """
    if not isinstance(document, dict):
        raise InvalidConfig("JSON", "A configuration must be an object.")
    try:
        config = ConfigDocument.model_validate(document).config
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidConfig(".".join(str(part) for part in first["loc"]), first["msg"]) from None
    config.check_patterns()
    return config


def stored_config(document: Any) -> domain.JobConfig:
    """Parse the JSON object of a stored configuration.

    Raises:
        StateDamaged: If the object is not a valid configuration.
    """
    try:
        return ConfigDocument.model_validate(document, context=STORED).config
    except ValidationError as error:
        raise StateDamaged from error
