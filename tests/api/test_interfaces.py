"""The API, the command line and the client's `Job` have the same operations on a job, under the same names."""

import inspect
import json
import re
from typing import Any

import pytest
import typer

from tests.support.api import DOCUMENT
from tidegate.__main__ import cli
from tidegate_spark import Job

OPENAPI = json.loads(DOCUMENT.read_text())
COMMANDS: dict[str, Any] = typer.main.get_command(cli).commands  # type: ignore[attr-defined]
METHODS = {name: method for name, method in inspect.getmembers(Job, inspect.isfunction) if not name.startswith("_")}

WORDS = {"watermark": "wait"}
"""Words of the command line and of `Job` for an operation with another name: the call can also answer at once."""
WITHOUT_COMMAND = {
    "report": "queries and reporters send it",
    "begin": "queries send it",
    "commit": "queries send it",
    "heartbeat": "queries send it",
    "get_batch": "`status` shows the latest batch of each query",
    "queries": "`status` shows them",
    "offsets": "`status` shows the partitions that are behind, and `wait` reads all",
    "substreams": "`status` shows them",
    "frame": "`frames` shows it, and `wait` waits for it",
    "consumer": "`consumers` shows it",
    "consume": "`frames --follow` and `notify` send it",
}
WITHOUT_METHOD = {
    "report": "queries send it",
    "begin": "queries send it",
    "commit": "queries send it",
    "heartbeat": "queries send it",
    "get_batch": "`queries` has the latest batch of each query",
    "consumer": "`consumers` has it",
    "consume": "programs on the command line send it",
}
METHODS_ONLY = {
    "stream": "coordinates a query",
    "with_watermark": "coordinates a query",
    "ensure_job": "creates the job for a query",
    "wait_for_offsets": "reads `offsets` until they are reached",
    "wait_for_frame": "calls `frame` until the frame is finished",
    "metrics": "names members of `status` for a metrics system",
}
NOT_KEYWORDS = {"from": "first", "range": "within", "as": "consumer", "exec": "command"}
"""Names in Python of parameters whose names are keywords or functions there."""
PARAMETERS_NOT_OFFERED = {
    ("declare", "max_event_times"): "queries send it when the coordinator has lost the job",
    ("frame", "wait"): "`wait` and `wait_for_frame` send it",
    ("frame", "force"): "`wait` and `wait_for_frame` send it",
    ("substreams", "name"): "`substreams` returns all pages of the table",
    ("substreams", "query"): "`substreams` returns all pages of the table",
    ("substreams", "state"): "`substreams` returns all pages of the table",
    ("substreams", "sort"): "`substreams` returns all pages of the table",
    ("substreams", "descending"): "`substreams` returns all pages of the table",
    ("substreams", "after"): "`substreams` returns all pages of the table",
    ("substreams", "limit"): "`substreams` returns all pages of the table",
}
"""Parameters that neither the command line nor `Job` has."""
OPTIONS_NOT_OFFERED = {
    ("completeness", "target"): "`--min-completeness`, as in `simulate`: with `--max-latency`, it bounds the choice",
    ("completeness", "lag"): "the command chooses the lags of its table",
    ("explain", "what_if_max_skew"): "`--what-if max_skew=6h`",
    ("explain", "what_if_arrival_target"): "`--what-if arrival_target=0.998`",
}
"""Parameters that only `Job` has, or for which an option of the command has another name."""


def operations() -> dict[str, set[str]]:
    """Return the names of the parameters of each operation on a job, without units, which are types elsewhere."""
    found = {}
    for path, methods in OPENAPI["paths"].items():
        for operation in methods.values():
            if "{job}" in path:
                found[operation["operationId"]] = set(parameters(operation)) - {"job"}
    return found


def parameters(operation: dict[str, Any]) -> list[str]:
    """Return the names of the path and query parameters of an operation, and of the members of its body."""
    # Headers are conditions on the revision, which other programs use, and positions in a stream.
    names = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] != "header"]
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        names += ["config"] if schema == "JobConfig" else OPENAPI["components"]["schemas"][schema]["properties"]
    return [NOT_KEYWORDS.get(name, re.sub(r"_(ms|s)$", "", name)) for name in names]


def word(operation: str) -> str:
    return WORDS.get(operation, operation)


@pytest.mark.parametrize("operation", operations())
def test_an_operation_has_a_command(operation: str) -> None:
    """The command has the name of the operation, and the names of its parameters."""
    name = word(operation).replace("_", "-")
    assert (name in COMMANDS) != (operation in WITHOUT_COMMAND)
    if name in COMMANDS:
        named = {parameter.name for parameter in COMMANDS[name].params}
        missing = operations()[operation] - named
        assert {(operation, parameter) for parameter in missing} <= PARAMETERS_NOT_OFFERED.keys() | OPTIONS_NOT_OFFERED


@pytest.mark.parametrize("operation", operations())
def test_an_operation_has_a_method(operation: str) -> None:
    """The method has the name of the operation, and the names of its parameters."""
    name = word(operation)
    assert (name in METHODS) != (operation in WITHOUT_METHOD)
    if name in METHODS:
        missing = operations()[operation] - inspect.signature(METHODS[name]).parameters.keys()
        assert {(operation, parameter) for parameter in missing} <= PARAMETERS_NOT_OFFERED.keys()


def test_every_command_on_a_job_is_an_operation() -> None:
    of_jobs = {
        name.replace("-", "_")
        for name, command in COMMANDS.items()
        if any((parameter.name, parameter.param_type_name) == ("job", "argument") for parameter in command.params)
    }
    assert of_jobs == {word(operation) for operation in operations().keys() - WITHOUT_COMMAND.keys()}


def test_every_method_is_an_operation() -> None:
    named = {word(operation) for operation in operations().keys() - WITHOUT_METHOD.keys()}
    assert METHODS.keys() == named | METHODS_ONLY.keys()


def test_options_have_the_names_of_their_parameters() -> None:
    """An option such as `--at-most` has the name that the API gives the parameter."""
    for name, command in COMMANDS.items():
        for parameter in command.params:
            long = parameter.opts[0]
            if long.startswith("--") and parameter.name != "as_json":
                named = long[2:].replace("-", "_")
                assert NOT_KEYWORDS.get(named, named) == parameter.name, f"{name} {long}"


def test_every_exception_is_needed() -> None:
    """An exception for a name that no longer exists would hide a difference."""
    known = operations()
    assert {*WORDS, *WITHOUT_COMMAND, *WITHOUT_METHOD} <= known.keys()
    for operation, parameter in {**PARAMETERS_NOT_OFFERED, **OPTIONS_NOT_OFFERED}:
        assert parameter in known[operation]
