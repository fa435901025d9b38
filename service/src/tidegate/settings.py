"""The settings of the service, from environment variables ``TIDEGATE_<NAME>`` or from files ``tidegate_<name>``."""

import os
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic_settings
from pydantic import BeforeValidator, Field, IPvAnyNetwork, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _split(text: Any) -> Any:
    return [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else text


class Settings(BaseSettings):
    """The settings of the service. By default, the service listens on loopback and uses an embedded Valkey."""

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_", extra="ignore", frozen=True)

    secrets_dir: Path | None = Field(
        default=None,
        description="Directory of files named tidegate_<name>, for settings that are not in the environment.",
    )
    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. An address other than loopback needs keys, or --insecure.",
    )
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on. 0 selects a free port.")
    redis_url: str | None = Field(
        default=None,
        description="Address of Redis 7.0 or later, or of Valkey: redis://, rediss://, unix://, through Sentinels "
        "redis+sentinel://, or a Redis Cluster redis+cluster://. By default, an embedded Valkey.",
    )
    buckets: int = Field(
        default=64,
        ge=1,
        le=16_384,
        description="Number of buckets over which a Redis Cluster spreads the jobs. The first start stores it in "
        "the cluster. A single server has no buckets.",
    )
    min_replicas: int = Field(
        default=0,
        ge=0,
        description="Number of Redis replicas that must have the state that an answer shows. 0: no wait.",
    )
    replication_timeout_ms: int = Field(
        default=1000,
        ge=1,
        le=4000,
        description="Longest wait in milliseconds for these replicas. Then the call gets 503 not_replicated.",
    )
    data_dir: Path = Field(
        default=Path("tidegate-data"), description="Directory of the embedded Valkey. Its state survives a restart."
    )
    token_secret: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Key of the watermark tokens. By default, the service creates a key and keeps it with the state.",
    )
    keys_file: Path | None = Field(
        default=None, description="File of the API keys, which `tidegate keys` writes. Without it, calls need no key."
    )
    sweep_interval_ms: int = Field(
        default=200, ge=10, le=60_000, description="Interval in milliseconds at which the sweeper checks timeouts."
    )
    max_clock_step_ms: int = Field(
        default=60_000,
        ge=1000,
        description="Longest accepted forward step of the Redis clock, in milliseconds. After a longer step, "
        "calls get 503 clock_jumped until the clock is correct again or the coordinators are "
        "restarted.",
    )
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="Maximum size of a request body in bytes."
    )
    max_body_memory_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=1024 * 1024,
        description="Maximum size in bytes of all request bodies together, without the first 16 KiB of each. One "
        "key can use half of it, and at least one body of the maximum size. A call beyond it gets 503 "
        "overloaded.",
    )
    max_connections: int = Field(
        default=12_000,
        ge=10,
        description="Maximum number of HTTP connections of one replica. A low limit on open files reduces it.",
    )
    max_connections_per_address: int = Field(
        default=4_000,
        ge=1,
        description="Maximum number of HTTP connections from one client, at most half of the previous limit. A "
        "client is an IPv4 address, or the /64 of an IPv6 address.",
    )
    request_timeout_s: float = Field(
        default=20,
        gt=0,
        description="Time in seconds in which a client must send a request, or read a part of its answer.",
    )
    max_active_calls: int = Field(
        default=16,
        ge=1,
        description="Number of calls in progress at one replica from which on several keys take turns.",
    )
    max_queued_calls: int = Field(
        default=4_000,
        ge=1,
        description="Maximum number of calls of one key that wait for their turn at one replica. A call beyond it "
        "gets 429 too_many_queued.",
    )
    max_calls_per_s: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of calls per second of one key at one replica, for keys without the quota "
        "requests_per_s. A call beyond it gets 429 rate_limited. By default, no limit.",
    )
    max_calls_burst: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of calls at once of one key, after a pause. By default, the calls of one second.",
    )
    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], NoDecode, BeforeValidator(_split)] = Field(
        default=(),
        description="Addresses or networks of proxies, separated by commas. The service accepts their X-Forwarded "
        "headers, and the limit per address does not apply to them.",
    )
    max_jobs: int = Field(default=10_000, ge=1, description="Maximum number of jobs.")
    max_substreams: int = Field(default=250_000, ge=1, description="Maximum number of substreams of one job.")
    max_scraped_substreams: int = Field(
        default=20_000, ge=1, description="Maximum number of substreams that one call of /metrics?substreams= returns."
    )
    max_wait_s: float = Field(
        default=300, gt=0, le=300, description="Longest time in seconds for which a call can wait for a watermark."
    )
    max_waiting: int = Field(default=10_000, ge=1, description="Maximum number of waiting clients of one replica.")
    stale_after_s: float = Field(
        default=300,
        gt=0,
        description="Time in seconds without client contact after which a job without open batches is stale.",
    )
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="Minimum level to log.")
    log_format: Literal["text", "json"] = Field(default="text", description="Format of the log.")
    audit_file: Path | None = Field(
        default=None,
        description="File of the audit log in JSON. Without it, the audit log is part of the log.",
    )


class SettingsError(Exception):
    """Raised when a setting is not valid. The message names its variable, and says what to change."""


def load_settings() -> Settings:
    """Return the settings from the environment, or from files in ``TIDEGATE_SECRETS_DIR``.

    Raises:
        SettingsError: If a setting is not valid. The message names the first such setting.
    """
    secrets = os.environ.get("TIDEGATE_SECRETS_DIR")
    if secrets is not None and not Path(secrets).is_dir():
        raise SettingsError(f"TIDEGATE_SECRETS_DIR: {secrets} is not a directory; set it to a directory, or unset it.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error", UserWarning
            )  # a directory in place of a file would be no more than a warning
            return Settings(_secrets_dir=secrets)
    except (pydantic_settings.SettingsError, OSError, UserWarning) as error:
        raise SettingsError(
            f"TIDEGATE_SECRETS_DIR: cannot read a file in {secrets} ({error.__cause__ or error}); expected text files."
        ) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = "TIDEGATE_" + "_".join(str(part) for part in first["loc"]).upper()
        raise SettingsError(f"{name}: {first['msg']}.") from None
