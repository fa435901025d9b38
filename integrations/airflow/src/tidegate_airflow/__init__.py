"""The Airflow provider of Tidegate.

Airflow imports this module in all of its processes, so it imports nothing.
"""

from typing import Any

__version__ = "0.1.0"


def get_provider_info() -> dict[str, Any]:
    """Return the hook, the sensors, the trigger and the connection form, in the format of Airflow's providers."""
    name = "Tidegate"
    modules = {part: [{"integration-name": name, "python-modules": [f"tidegate_airflow.{part}"]}] for part in _PARTS}
    return {
        "package-name": "airflow-provider-tidegate",
        "name": name,
        "description": "Sensors, a trigger and a hook for the watermarks and frames of Tidegate.",
        "versions": [__version__],
        "integrations": [{"integration-name": name, "tags": ["service"]}],
        **modules,
        "connection-types": [
            {
                "connection-type": "tidegate",
                "hook-class-name": "tidegate_airflow.hooks.TidegateHook",
                "hook-name": name,
                # Airflow 3.2 and later read these members; see TidegateHook for earlier versions.
                "conn-fields": {
                    field: {
                        "label": label,
                        "description": description,
                        "schema": {"type": ["string", "null"] if kind == "text" else ["number", "null"]},
                    }
                    for field, (label, description, kind) in CONNECTION_FIELDS.items()
                },
                "ui-field-behaviour": {
                    "hidden-fields": CONNECTION_FORM["hidden_fields"],
                    "relabeling": CONNECTION_FORM["relabeling"],
                    "placeholders": CONNECTION_FORM["placeholders"],
                },
            }
        ],
        "extra-links": ["tidegate_airflow.sensors.TidegateJobLink"],
    }


_PARTS = ("hooks", "sensors", "triggers")

CONNECTION_FIELDS = {
    "verify": ("CA file", "File with the certificates to trust, or false to trust all.", "text"),
    "timeout": (
        "Timeout",
        "Maximum duration of a call in seconds, without the wait for a watermark. Default: 10.",
        "number",
    ),
    "page": ("Page", "Address of the operators' page for links, if browsers use another address.", "text"),
}
"""The members of a connection's extra: label, description and kind, by name."""
CONNECTION_FORM: dict[str, Any] = {
    "hidden_fields": ["login"],
    "relabeling": {"password": "Key", "schema": "Scheme"},
    "placeholders": {
        "host": "coordinator, or https://tidegate.example.com",
        "port": "8000",
        "schema": "http",
        "password": "tdg_…",
    },
}
"""The labels and placeholders of the connection form."""
