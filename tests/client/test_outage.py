"""Waiting for a coordinator: long enough, not for ever, and not for an answer that waiting does not change."""

import json

import pytest

from tidegate_spark.errors import CoordinatorUnavailable, JobMissing, Refused
from tidegate_spark.outage import NoAnswer, Patience

QUICK = Patience(5, first_pause_s=0.001, longest_pause_s=0.002)


class Answers:
    """Gives one answer after the other; the last one again and again."""

    def __init__(self, *answers: tuple[int, bytes] | None) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, timeout_s: float) -> tuple[int, bytes]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise NoAnswer("connection refused")
        return answer


def test_it_waits_through_an_outage() -> None:
    """A restart of the coordinator must not fail a query."""
    answers = Answers(None, (503, b"{}"), None, (502, b"<html>"), (200, b'{"pin": 5}'))
    assert QUICK.call("Begin", answers) == {"pin": 5}
    assert answers.asked == 5


def test_it_gives_up_and_says_that_nothing_is_lost() -> None:
    """Whoever is woken by the failed query wants to know whether rows are gone."""
    with pytest.raises(CoordinatorUnavailable, match="Nothing is lost"):
        Patience(0.01, 0.001).call("Begin", Answers(None))


def test_a_refusal_is_not_asked_again() -> None:
    """A fenced run must stop at once."""
    answers = Answers((409, json.dumps({"code": "query_fenced", "detail": "replaced"}).encode()))
    with pytest.raises(Refused, match=r"replaced \[query_fenced, 409\]") as refused:
        QUICK.call("Begin", answers)
    assert (refused.value.code, answers.asked) == ("query_fenced", 1)


@pytest.mark.parametrize(("status", "code"), [(404, "job_not_found"), (410, "job_deleted")])
def test_a_missing_job_is_an_error_of_its_own(status: int, code: str) -> None:
    """The client can create it again."""
    with pytest.raises(JobMissing):
        QUICK.call("Begin", Answers((status, json.dumps({"code": code}).encode())))


def test_an_answer_of_somebody_else_is_shown() -> None:
    """A wrong address often leads to a web server that answers 404 in HTML."""
    with pytest.raises(Refused, match="not the coordinator's"):
        QUICK.call("Begin", Answers((404, b"<html>nginx</html>")))
