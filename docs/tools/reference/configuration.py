"""The page of the settings of the service."""

from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from docs.tools.reference.tables import code, table
from tidegate.settings import Settings

HEAD = """\
# Configuration

The settings of `tidegate serve` are environment variables. If `TIDEGATE_SECRETS_DIR` is set, a file in that directory
can also set a variable. Name the file after the variable, in upper or lower case. The coordinator exits with a message
if a value is invalid.

Clients and the command line read `TIDEGATE_URL` (the address of the coordinator) and `TIDEGATE_TOKEN` (the key).
OpenTelemetry reads its own variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT` ([traces](../how-to/monitor.md#traces)).

"""


def page() -> str:
    """Return the page."""
    rows = [(code(f"TIDEGATE_{name.upper()}"), _default(field), _description(field)) for name, field in _fields()]
    return HEAD + table(("variable", "default", "meaning"), rows) + "\n"


def _fields() -> list[tuple[str, FieldInfo]]:
    return list(Settings.model_fields.items())


def _default(field: FieldInfo) -> str:
    if field.default is None or isinstance(field.default, SecretStr):
        return ""
    value: Any = field.default
    return code(",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)) if value != () else ""


def _description(field: FieldInfo) -> str:
    assert field.description is not None
    return field.description
