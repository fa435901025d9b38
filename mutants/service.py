"""Defects of the HTTP service: tokens, keys, numbers, and notifications."""

from mutants.mutant import Guarantee, Mutant

SERVICE = "service/src/tidegate"
ROLES = "tests/api/test_roles.py"

MUTANTS = (
    Mutant(
        "service-forged-token-accepted",
        "A token with a wrong MAC moves the watermark.",
        Guarantee.MONOTONE,
        f"{SERVICE}/auth/watermark_tokens.py",
        "return claimed if genuine else PROVES_NOTHING",
        "return claimed",
        ("tests/api/test_jobs.py::test_a_token_heals_a_job_and_a_forged_one_does_nothing",),
    ),
    Mutant(
        "service-waiting-client-not-notified",
        "A waiting client is not notified when the watermark moves.",
        Guarantee.LIVE,
        f"{SERVICE}/store/lua/parts/reply.lua",
        "  if state.changes.is_recorded then journal.announce() end\n",
        "",
        ("tests/api/test_batches.py::test_waiting_ends_with_the_watermark_or_with_the_time",),
    ),
    Mutant(
        "service-direct-report-not-authorised",
        "A report that is served directly needs no role.",
        Guarantee.ACCESS,
        f"{SERVICE}/api/direct.py",
        "            require_access(scope)\n",
        "",
        (f"{ROLES}::test_the_matrix[report-read]",),
    ),
    Mutant(
        "service-merged-substream-twice",
        "Two reports of one substream are merged, so an event time too far in the future discards a valid one.",
        Guarantee.EXACT,
        f"{SERVICE}/store/merging.py",
        " and self._members.isdisjoint(report.members)",
        "",
        ("tests/store/test_merging.py::test_a_substream_in_two_reports_is_in_two_calls",),
    ),
    Mutant(
        "service-inexact-number-accepted",
        "The API accepts an event time that a double cannot hold exactly.",
        Guarantee.EXACT,
        f"{SERVICE}/reads/types.py",
        "EventTime = Annotated[int, Field(strict=True, ge=EXACT_DOUBLE.lowest, le=EXACT_DOUBLE.highest)]",
        "EventTime = Annotated[int, Field(strict=True, ge=-(2**62), le=2**62)]",
        ("tests/api/test_bad_input.py::test_a_bad_report_names_its_field_and_changes_nothing",),
    ),
    Mutant(
        "service-prefix-not-checked",
        "A key with a job prefix may use any job.",
        Guarantee.ACCESS,
        f"{SERVICE}/auth/callers.py",
        "if self.key is not None and not job.startswith(self.prefix):",
        "if self.key is not None and not job.startswith(''):",
        (f"{ROLES}::test_the_matrix[get_job-read]", f"{ROLES}::test_the_matrix[report-report]"),
    ),
    Mutant(
        "service-prefix-not-applied-to-list",
        "The list of jobs contains jobs outside the prefix of the key.",
        Guarantee.ACCESS,
        f"{SERVICE}/reads/status.py",
        "if job > after and job.startswith(prefix)]",
        "if job > after]",
        (f"{ROLES}::test_a_list_has_the_jobs_that_a_key_is_for",),
    ),
    Mutant(
        "service-role-not-checked",
        "A key may make calls that its role does not allow.",
        Guarantee.ACCESS,
        f"{SERVICE}/web/access.py",
        "    caller.require_role(*roles)\n",
        "",
        (f"{ROLES}::test_the_matrix[reset-read]", f"{ROLES}::test_the_matrix[report-read]"),
    ),
    Mutant(
        "service-secret-not-checked",
        "The service checks only the id of a key, not the secret.",
        Guarantee.ACCESS,
        f"{SERVICE}/auth/keyring.py",
        "return key if genuine and scheme == SCHEME else None",
        "return key if scheme == SCHEME else None",
        ("tests/auth/test_keyring.py::test_a_key_is_known_by_itself_alone",),
    ),
)
