"""The contents of docker-compose.yml and of the Dockerfile."""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[2]
VENV = Path(sys.prefix)
_INTERPOLATED = re.compile(r"\$(?:\$|\{(\w+)(?::-([^}]*))?\})")


def described(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the contents of docker-compose.yml with variables replaced, as an engine reads it."""

    def interpolate(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: interpolate(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [interpolate(inner) for inner in value]
        return _INTERPOLATED.sub(_value, value) if isinstance(value, str) else value

    def _value(found: re.Match[str]) -> str:
        return "$" if found.group() == "$$" else environment.get(found[1], found[2] or "")

    read: dict[str, Any] = interpolate(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))
    return read


@dataclass(frozen=True)
class Image:
    """The environment, entry point and command of a stage of the Dockerfile."""

    environment: dict[str, str]
    entrypoint: list[str]
    command: list[str]


def _parsed(dockerfile: str) -> DockerfileParser:
    return DockerfileParser(fileobj=BytesIO(dockerfile.encode()))  # type: ignore[arg-type]  # its stubs declare text


def image_of(target: str) -> Image:
    said: dict[str, list[str]] = {}
    parents: dict[str, str] = {}
    stage = ""
    for line in _parsed((ROOT / "Dockerfile").read_text()).structure:
        if line["instruction"] == "FROM":
            parent, _, stage = line["value"].split()
            parents[stage] = parent
        said.setdefault(stage, []).append(line["content"])
    inherited = image_of(parents[target]) if parents[target] in parents else Image({}, [], [])
    own = _parsed("".join(said[target]))
    instructions = {line["instruction"]: line["value"] for line in own.structure}
    return Image(
        inherited.environment | dict(own.envs),
        json.loads(instructions["ENTRYPOINT"]) if "ENTRYPOINT" in instructions else inherited.entrypoint,
        json.loads(instructions["CMD"]) if "CMD" in instructions else inherited.command,
    )
