"""Codes of all errors, with their HTTP statuses. No other module contains the status of an error."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """The HTTP status and title of an error code.

    Attributes:
        status: HTTP status.
        title: Title of the problem document. Every occurrence of the error has the same title.
        retry_after_s: Value of the ``Retry-After`` header, for calls that the client may repeat unchanged.
    """

    status: int
    title: str
    retry_after_s: int | None = None


ERRORS: dict[str, ErrorKind] = {
    "malformed": ErrorKind(400, "Malformed request"),
    "incomplete_body": ErrorKind(400, "Incomplete body"),
    "key_required": ErrorKind(401, "Key required"),
    "key_unknown": ErrorKind(401, "Key unknown"),
    "key_expired": ErrorKind(401, "Key expired"),
    "role_not_allowed": ErrorKind(403, "Role not allowed"),
    "job_not_allowed": ErrorKind(403, "Job not allowed"),
    "foreign_origin": ErrorKind(403, "Foreign origin"),
    "form_expired": ErrorKind(403, "Form expired"),
    "job_not_found": ErrorKind(404, "Job not found"),
    "query_not_found": ErrorKind(404, "Query not found"),
    "substream_not_found": ErrorKind(404, "Substream not found"),
    "batch_not_found": ErrorKind(404, "Batch not found"),
    "hold_not_found": ErrorKind(404, "Hold not found"),
    "no_such_path": ErrorKind(404, "No such path"),
    "method_not_allowed": ErrorKind(405, "Method not allowed"),
    "request_timeout": ErrorKind(408, "Request timeout"),
    "job_complete": ErrorKind(409, "Job complete"),
    "batch_open": ErrorKind(409, "Batch open"),
    "batch_not_begun": ErrorKind(409, "Batch not begun"),
    "reports_missing": ErrorKind(409, "Reports missing"),
    "batch_forgotten": ErrorKind(409, "Batch forgotten"),
    "pinned_watermark_conflict": ErrorKind(409, "Pinned watermark conflict"),
    "query_fenced": ErrorKind(409, "Query fenced"),
    "checkpoint_conflict": ErrorKind(409, "Checkpoint conflict"),
    "query_retired": ErrorKind(409, "Query retired"),
    "substream_done": ErrorKind(409, "Substream done"),
    "event_time_missing": ErrorKind(409, "Event time missing"),
    "hold_active": ErrorKind(409, "Hold active"),
    "hold_exists": ErrorKind(409, "Hold exists"),
    "frame_in_force": ErrorKind(409, "Frame in force"),
    "job_deleted": ErrorKind(410, "Job deleted"),
    "job_exists": ErrorKind(412, "Job exists"),
    "revision_mismatch": ErrorKind(412, "Revision mismatch"),
    "body_too_large": ErrorKind(413, "Body too large"),
    "url_too_long": ErrorKind(414, "URL too long"),
    "not_json": ErrorKind(415, "Not JSON"),
    "foreign_host": ErrorKind(421, "Foreign host"),
    "invalid_request": ErrorKind(422, "Invalid request"),
    "invalid_config": ErrorKind(422, "Invalid configuration"),
    "too_many_rows": ErrorKind(422, "Too many rows"),
    "precondition_required": ErrorKind(428, "Precondition required"),
    "too_many_waiting": ErrorKind(429, "Too many waiting clients", 5),
    "too_many_queued": ErrorKind(429, "Too many queued calls", 1),
    "too_many_jobs": ErrorKind(429, "Too many jobs", 5),
    "too_many_substreams": ErrorKind(429, "Too many substreams", 5),
    "too_many_logins": ErrorKind(429, "Too many failed logins", 6),
    "quota_exceeded": ErrorKind(429, "Quota exceeded", 1),
    "rate_limited": ErrorKind(429, "Rate limited", 1),
    "head_too_large": ErrorKind(431, "Request head too large"),
    "internal": ErrorKind(500, "Internal error"),
    "state_damaged": ErrorKind(500, "State damaged"),
    "store_unavailable": ErrorKind(503, "Store unavailable", 1),
    "store_full": ErrorKind(503, "Store full", 5),
    "store_read_only": ErrorKind(503, "Store read-only", 5),
    "not_replicated": ErrorKind(503, "Not replicated", 1),
    "clock_jumped": ErrorKind(503, "Clock jumped", 5),
    "state_too_new": ErrorKind(503, "State too new", 5),
    "overloaded": ErrorKind(503, "Overloaded", 1),
    "too_many_connections": ErrorKind(503, "Too many connections", 5),
    "too_many_from_address": ErrorKind(503, "Too many connections from one address", 5),
}

CLIENT_DISCONNECTED = 499
"""Status of an answer to a client that has disconnected. The status appears only in metrics."""

ACCESS_DENIED = frozenset({401, 403})
"""Statuses of calls that the caller may not make."""

_REFUSED = frozenset({429, 503})
_OF_CONNECTIONS = frozenset({"too_many_connections", "too_many_from_address"})
REFUSALS = tuple(code for code, kind in ERRORS.items() if kind.status in _REFUSED and code not in _OF_CONNECTIONS)
"""Codes of the errors for calls that the client may repeat later, except those for connections."""


def is_refusal(status: int) -> bool:
    """Return whether a status means that the client may repeat the call later."""
    return status in _REFUSED


def is_error(status: int) -> bool:
    """Return whether a status reports an error."""
    return status >= 400


def is_server_error(status: int) -> bool:
    """Return whether a status reports an error of the service."""
    return status >= 500
