"""What an operator can set, all of it from the environment as ``TIDEGATE_<NAME>``, or from files of that name."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, IPvAnyNetwork, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _split(text: Any) -> Any:
    """Return the parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else text


class Settings(BaseSettings):
    """Defaults suit a laptop: loopback, and an embedded Valkey."""

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_", extra="ignore", frozen=True)

    secrets_dir: Path | None = Field(
        default=None, description="files named tidegate_<name> in it are settings that the environment does not have"
    )
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535, description="0: any free port")
    redis_url: str | None = Field(default=None, description="unset: an embedded Valkey in data_dir")
    data_dir: Path = Path("tidegate-data")
    token_secret: SecretStr | None = Field(
        default=None, min_length=16, description="key of the watermark tokens; unset: made once and kept with the state"
    )
    keys_file: Path | None = Field(default=None, description="who may call; unset: anybody, on loopback alone")
    sweep_interval_ms: int = Field(default=200, ge=10, le=60_000)
    max_clock_step_ms: int = Field(
        default=60_000, ge=1000, description="a clock of Redis that goes ahead by more at once is not believed"
    )
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    max_connections: int = Field(
        default=12_000, ge=10, description="open HTTP connections of one replica, as far as its open-file limit allows"
    )
    max_connections_per_address: int = Field(
        default=4_000, ge=1, description="open HTTP connections from one client address; at most half of all"
    )
    request_timeout_s: float = Field(
        default=20, gt=0, description="time in which a client must send a request, or read some of its answer"
    )
    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], NoDecode, BeforeValidator(_split)] = Field(
        default=(),
        description="addresses or networks of proxies, separated by commas: their X-Forwarded headers are believed, "
        "and the limit per address does not apply to them",
    )
    max_jobs: int = Field(default=10_000, ge=1)
    max_substreams: int = Field(default=250_000, ge=1, description="of one job")
    max_scraped_substreams: int = Field(
        default=20_000, ge=1, description="substreams that one call of /metrics?substreams= may return"
    )
    max_wait_s: float = Field(default=300, gt=0, description="longer, nobody waits for a watermark in one call")
    max_waiting: int = Field(default=10_000, ge=1, description="clients that wait for something at once, by replica")
    stale_after_s: float = Field(
        default=300, gt=0, description="a job that no client has spoken for so long is stale, unless a batch is open"
    )
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    log_format: Literal["text", "json"] = "text"
    audit_file: Path | None = Field(
        default=None, description="file of the audit log, as JSON; unset: in the log, as the logger tidegate.audit"
    )


class SettingsError(Exception):
    """A setting that cannot be used; the message names its variable and says what it takes."""


def load_settings() -> Settings:
    """:raises SettingsError: for the first setting that cannot be used."""
    secrets = os.environ.get("TIDEGATE_SECRETS_DIR")
    if secrets is not None and not Path(secrets).is_dir():
        raise SettingsError(f"TIDEGATE_SECRETS_DIR: {secrets} is no directory.")
    try:
        return Settings(_secrets_dir=secrets)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = "TIDEGATE_" + "_".join(str(part) for part in first["loc"]).upper()
        raise SettingsError(f"{name}: {first['msg']}.") from None
