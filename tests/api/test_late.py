"""Updated, dropped and diverted rows, over HTTP."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from tests.support.api import HOUR, RUN, commit_rows, problem, read
from tidegate.http.schemas import RowAccounting

Make = Callable[..., str]


def late(http: httpx.Client, path: str, **parameters: Any) -> dict[str, Any]:
    return read(http, f"{path}/late", **parameters)


def test_dropped_and_diverted_rows_are_listed_by_hour_and_span(http: httpx.Client, make_job: Make) -> None:
    path = make_job()
    empty = late(http, path)
    assert (empty["hours"], empty["spans"], empty["dropped"], empty["diverted"]) == ([], [], 0, 0)
    commit_rows(
        http,
        path,
        0,
        substreams=["HNL", "SFO"],
        on_time=[291, 50],
        late=[9, 0],
        updated=[2, 0],
        hours=[[[14, 100, 2, 1], [15, 202, 0, 8]], [[15, 50, 0, 0]]],
    )
    commit_rows(
        http, path, 1, substreams=["SFO"], on_time=[36], late=[4], late_disposition="diverted", hours=[[[20, 40, 0, 4]]]
    )
    found = late(http, path)
    assert (found["dropped"], found["diverted"], found["rows"]["late"], found["rows"]["updated"]) == (9, 4, 13, 2)
    numbers = [[row[name] for name in ("start", "rows", "updated", "dropped", "diverted")] for row in found["hours"]]
    assert numbers == [[14 * HOUR, 100, 2, 1, 0], [15 * HOUR, 252, 0, 8, 0], [20 * HOUR, 40, 0, 0, 4]]
    assert found["spans"] == [
        {
            "query": "q",
            "substream": "HNL",
            "start": 14 * HOUR,
            "end": 16 * HOUR,
            "rows": 302,
            "updated": 2,
            "dropped": 9,
            "diverted": 0,
        },
        {
            "query": "q",
            "substream": "SFO",
            "start": 20 * HOUR,
            "end": 21 * HOUR,
            "rows": 40,
            "updated": 0,
            "dropped": 0,
            "diverted": 4,
        },
    ]
    assert [span["substream"] for span in late(http, path, limit=1)["spans"]] == ["HNL"]


def test_late_rows_of_one_substream(http: httpx.Client, make_job: Make) -> None:
    path = make_job()
    commit_rows(
        http,
        path,
        0,
        substreams=["a", "b"],
        on_time=[1, 5],
        late=[2, 1],
        late_disposition="diverted",
        hours=[[[-1, 3, 0, 2]], [[-1, 6, 0, 1]]],
    )
    found = late(http, path, substream="a", query="q")
    assert (found["dropped"], found["diverted"], found["rows"]["on_time"]) == (0, 2, 1)
    assert [(row["start"], row["rows"], row["diverted"]) for row in found["hours"]] == [(-HOUR, 3, 2)]
    assert [span["substream"] for span in found["spans"]] == ["a"]
    problem(http.get(f"{path}/late", params={"substream": "a"}), 404, "substream_not_found")
    evicted = http.post(f"{path}/substreams:evict", json={"query": "q", "substreams": ["a"], "reason": "gone"})
    assert evicted.status_code == 200, evicted.text
    found = late(http, path, substream="a", query="q")
    assert (found["rows"]["on_time"], found["diverted"], found["dropped"]) == (1, 2, 0)
    assert [row["rows"] for row in found["hours"]] == [3], "the counts of an evicted substream must be kept"


def test_rows_are_null_if_not_all_are_counted_by_substream(http: httpx.Client, make_job: Make) -> None:
    path = make_job()
    commit_rows(
        http,
        path,
        0,
        substreams=["a", "b"],
        on_time=[500, 499],
        late=[1, 0],
        hours=[[[1, 1, 0, 1]], None],
        all_hours=[[1, 900, 0, 1], [2, 100, 0, 0]],
    )
    commit_rows(http, path, 1, substreams=["a"], on_time=[9], late=[1], hours=[[[3, 10, 0, 1]]])
    found = late(http, path)
    assert [(row["rows"], row["dropped"]) for row in found["hours"]] == [(900, 1), (100, 0), (10, 1)]
    assert [(span["start"] // HOUR, span["rows"], span["dropped"]) for span in found["spans"]] == [
        (1, None, 1),
        (3, 10, 1),
    ]
    of_one = late(http, path, substream="a", query="q")
    assert [row["rows"] for row in of_one["hours"]] == [None, 10]


def test_rows_without_hours_are_in_the_totals(http: httpx.Client, make_job: Make) -> None:
    path = make_job()
    commit_rows(http, path, 0, substreams=["a", "b"], on_time=[0, 5], late=[3, 4], hours=[None, [[1, 9, 0, 4]]])
    commit_rows(http, path, 1, substreams=["a"], late=[2])
    found = late(http, path)
    assert (found["dropped"], [row["dropped"] for row in found["hours"]]) == (9, [4])


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"hours": []}, "hours: has 0 values for 1 substreams"),
        ({"hours": [[[1, 1, 1, 0]]]}, "hours: has more rows of a (in total, updated or late) than its counts"),
        ({"hours": [[[1, 0, 0, 1]]]}, "hours: has more rows of a"),
        ({"hours": [[[1, 1, 0, 0], [2, 1, 0, 0]]]}, "hours: has more rows of a"),
        ({"all_hours": [[1, 2, 0, 0]]}, "all_hours: has more rows (in total, updated or late) than the counts"),
        ({"hours": [[[1, 1, 0, 0]]], "all_hours": [[2, 1, 0, 0]]}, "all_hours: has fewer rows of hour 1 than"),
        ({"hours": [[[1, 5, 3]]]}, "hours.0.0.3: is missing"),
        ({"hours": [[[2**52, 5, 0, 0]]]}, "hours.0.0.0"),
        ({"late_disposition": "lost"}, "late_disposition: Input should be 'dropped' or 'diverted'"),
    ],
)
def test_inconsistent_row_counts_are_refused(
    http: httpx.Client, make_job: Make, rows: dict[str, Any], says: str
) -> None:
    path = make_job()
    batch = f"{path}/queries/q/batches/0"
    http.put(batch, json=RUN)
    given = {"substreams": ["a"], "on_time": [1], "late": [0], "null_event_time": [0]}
    refused = http.post(f"{batch}:commit", json=RUN | {"rows": given | rows})
    assert says in problem(refused, 422, "invalid_request")["detail"]
    assert late(http, path)["hours"] == []


@pytest.mark.parametrize(
    ("hours", "says"),
    [(50_001, "at most 50000 items"), (9_000, "has 54000 entries; the limit is 50000")],
)
def test_too_many_hours_are_refused(hours: int, says: str) -> None:
    """A commit with more entries would block Redis for too long."""
    none = [0] * 6
    rows = {"substreams": list("abcdef"), "on_time": none, "late": none, "null_event_time": none}
    rows |= {"on_time": [10**6] * 6}
    with pytest.raises(ValidationError, match=says):
        RowAccounting.model_validate(rows | {"hours": [[(hour, 1, 0, 0) for hour in range(hours)]] * 6})
