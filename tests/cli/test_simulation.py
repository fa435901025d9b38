"""``tidegate simulate``: CSV and Parquet input, units, policies and errors."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from docs.tools.drawing.clicks import MINUTE, clicks
from tests.support.book import BOOK
from tidegate.__main__ import cli

AIM = {
    "policy": {"type": "target_completeness", "target": 0.99, "cold_start_lag_ms": 25.5},
    "throttle": {"type": "frame", "size_ms": 10},
}
LAG = {"policy": {"type": "limiting_lag", "lag_ms": 10}}


def run(*arguments: object, status: int = 0) -> Result:
    ended = CliRunner().invoke(cli, ["simulate", *map(str, arguments)])
    assert ended.exit_code == status, ended.output
    return ended


def results(*arguments: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(*arguments, "--json").stdout)
    return found


def csv(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def book_file(tmp_path: Path) -> Path:
    return csv(
        tmp_path / "book.csv", "n,t", *(f"{place},{row.event_time / MINUTE}" for place, row in enumerate(clicks()))
    )


def test_the_results_of_the_book(book_file: Path) -> None:
    """The command reproduces the table of docs/explanation/completeness.md, with lags and with a policy."""
    (book_file.parent / "ten.json").write_text(json.dumps(LAG))
    lags = ",".join(map(str, BOOK))
    rows = results(
        book_file, "--event-time", "t", "--lags", lags, "--window", 10, "--policy", book_file.parent / "ten.json"
    )
    assert [row["lag"] for row in rows] == [*BOOK, None]
    for row, (completeness, dropped, latency) in zip(rows, BOOK.values(), strict=False):
        assert (round(100 * row["completeness"], 2), row["dropped"]) == (completeness, dropped)
        assert round(row["avg_emit_latency"], 2) == latency
    assert {**rows[-1], "lag": 10} == {"policy": "ten.json", **rows[3]}
    budget = ("--event-time", "t", "--lags", lags, "--window", 10, "--max-latency", 12, "--min-completeness", 0.9)
    chosen = run(book_file, *budget)
    assert "lowest latency within the bounds is a lag of 10." in chosen.stderr
    lines = chosen.stdout.splitlines()
    assert lines[0].split() == ["lag", "completeness", "dropped", "updated", "windows", "latency"]
    assert lines[4].split() == ["10", "93.47", "%", "1307", "0", "998", "10.87"]
    (book_file.parent / "aim.json").write_text(json.dumps(AIM))
    [aimed] = results(book_file, "--event-time", "t", "--window", 10, "--policy", book_file.parent / "aim.json")
    assert aimed["completeness"] >= 0.99
    assert aimed["avg_emit_latency"] < 20.87  # the latency at a lag of 20, whose completeness is hardly higher
    tight = run(book_file, *budget[:-3], 3, "--min-completeness", 0.9, status=3)
    assert "No result is within the bounds" in tight.stderr


def test_decimals_are_exact(tmp_path: Path) -> None:
    """Decimals are not rounded to doubles: an event time of 0.3 is not in the window [0.2, 0.3)."""
    file = csv(tmp_path / "f.csv", "t", "0.1", "0.30000000000000000000000000000000001", "0.29", "0.3")
    [row] = results(file, "--event-time", "t", "--lags", "0", "--window", "0.1")
    assert (row["dropped"], row["windows"]) == (1, 1)
    assert row["avg_emit_latency"] == pytest.approx(0.1)
    [row] = results(file, "--event-time", "t", "--lags", "0.00000000000000000000000000000000002", "--window", "0.1")
    assert row["dropped"] == 0


def test_times_and_durations_have_units(tmp_path: Path) -> None:
    """ISO 8601 times, Parquet timestamps of any unit and durations are converted to milliseconds."""
    start = datetime(2013, 1, 7, tzinfo=UTC)
    at = [start + timedelta(minutes=minutes) for minutes in (0, 70, 50, 200, 100)]
    file = csv(tmp_path / "f.csv", "when,dest", *(f"{one.isoformat()},BOS" for one in at))
    expected = results(file, "--event-time", "when", "--lags", "0m,30m", "--window", "1h")
    assert [row["dropped"] for row in expected] == [2, 1]
    assert expected[1]["avg_emit_latency"] == 1000 * 60 * (140 + 80) / 2
    for unit in ("s", "ms", "us", "ns"):
        table = pa.table({"when": pa.array(at, pa.timestamp(unit, "UTC")), "dest": ["BOS"] * 5})
        pq.write_table(table, tmp_path / "f.parquet")
        assert results(tmp_path / "f.parquet", "--event-time", "when", "--lags", "0m,30m", "--window", "1h") == expected
    with_gap = results(file, "--event-time", "when", "--lags", "0m", "--window", "1h", "--grace", "1h")
    assert (with_gap[0]["dropped"], with_gap[0]["updated"]) == (1, 1)


def test_times_are_rounded_down_to_milliseconds(tmp_path: Path) -> None:
    """A row stays in the window in which the coordinator and the Spark client count it, from every kind of file."""
    start = datetime(2013, 3, 10, 1, 30, tzinfo=UTC)
    at = [start, start + timedelta(minutes=30) - timedelta(microseconds=400), start + timedelta(minutes=30)]
    of = ("--event-time", "when", "--lags", "0", "--window", "1h")
    files = [csv(tmp_path / "f.csv", "when", *(one.isoformat() for one in at))]
    for unit in ("us", "ns"):
        files.append(tmp_path / f"{unit}.parquet")
        pq.write_table(pa.table({"when": pa.array(at, pa.timestamp(unit, "UTC"))}), files[-1])
    for file in files:
        [row] = results(file, *of)
        assert (row["dropped"], row["windows"], row["avg_emit_latency"]) == (0, 1, 0), file
    # The watermark is the last whole millisecond before 02:00 until the row of 02:00, so 0.4 ms close no window.
    before = csv(tmp_path / "before.csv", "when", *(one.isoformat() for one in at[:2]))
    assert results(before, *of)[0]["windows"] == 0


@pytest.mark.parametrize(
    ("cells", "options", "expected"),
    [
        (("1362900000", "1362903600"), ("--window", "1h"), "looks like Unix seconds; write 1362900000000"),
        (("1362900000000000",), ("--window", "1h"), "looks like Unix microseconds"),
        (("20130310", "20130311"), ("--window", "1d"), "looks like a date; write 2013-03-10"),
        (("1362900000",), ("--window", "10", "--grace", "1m"), "--grace has a unit"),
        (("2013-03-10T01:00:00Z",), ("--window", "60"), "--window 60 needs a unit"),
        (("2013-03-10T01:00:00Z",), ("--window", "1m", "--lags", "0,5"), "--lags 5 needs a unit"),
        (("2013-03-10T01:00:00Z", "1362877230"), ("--window", "1m"), "row 2: this file has both numbers and ISO 8601"),
    ],
)
def test_units_that_do_not_match_are_refused(
    tmp_path: Path, cells: tuple[str, ...], options: tuple[str, ...], expected: str
) -> None:
    """With seconds, windows of 1h would be 41 days long, and every lag would have a completeness of 100 %."""
    file = csv(tmp_path / "f.csv", "t", *cells)
    chosen = options if "--lags" in options else (*options, "--lags", "0")
    shown = run(file, "--event-time", "t", *chosen, status=2).output
    assert expected in " ".join(shown.replace("│", " ").split())


def test_a_simulation_can_insist_on_its_units(tmp_path: Path) -> None:
    file = csv(tmp_path / "f.csv", "t", "1362900000", "1362903600", "1362907200")
    [row] = results(file, "--event-time", "t", "--lags", "0", "--window", "1h", "--force")
    assert row["windows"] == 0


def test_substreams_have_watermarks_of_their_own(tmp_path: Path) -> None:
    """A slow substream whose rows are in order loses rows under a single watermark, but not under its own."""
    lines = [line for n in range(100) for line in (f"{100 + n},fast", f"{n},slow")]
    file = csv(tmp_path / "f.csv", "t,s", *lines)
    of = ("--event-time", "t", "--lags", "0", "--window", "10")
    assert results(file, *of)[0]["dropped"] == 100
    assert results(file, *of, "--substream", "s", "--declare")[0]["dropped"] == 0
    assert results(file, *of, "--substream", "s")[0]["dropped"] == 100, (
        "an undeclared substream must not hold the watermark before its first row"
    )


@pytest.mark.parametrize("limit", ["idle_timeout_ms", "max_retention_ms"])
def test_policies_that_depend_on_arrival_times(tmp_path: Path, limit: str) -> None:
    """With arrival times, a limit passes a silent substream."""
    lines = ["0,a,0", *(f"{n},b,{n}" for n in range(1, 200)), "1,a,200"]
    file = csv(tmp_path / "f.csv", "t,s,at", *lines)
    config = LAG | {limit: 50, "max_future_skew_ms": None}
    (tmp_path / "idle.json").write_text(json.dumps(config))
    of = (file, "--event-time", "t", "--substream", "s", "--window", "10", "--policy", tmp_path / "idle.json")
    assert "--arrival" in run(*of, status=2).stderr
    [idle] = results(*of, "--arrival", "at")
    assert (idle["policy"], idle["dropped"]) == ("idle.json", 1)
    (tmp_path / "idle.json").write_text(json.dumps(LAG))
    assert results(*of)[0]["dropped"] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.csv", "--event-time", "t", "--lags", "1", "--window", "1"], "cannot read none.csv"),
        (["f.csv", "--event-time", "x", "--lags", "1", "--window", "1"], "has no column 'x'; its columns: t, s"),
        (["f.csv", "--event-time", "s", "--lags", "1", "--window", "1"], "row 1: 'a' is not a time"),
        (["f.csv", "--event-time", "t", "--window", "1"], "give lags to simulate"),
        (["f.csv", "--event-time", "t", "--lags", "soon", "--window", "1"], "--lags: 'soon' is not a duration"),
        (["f.csv", "--event-time", "t", "--lags", "1", "--window", "0"], "--window must be greater than 0"),
        (["f.csv", "--event-time", "t", "--lags", "nan", "--window", "1"], "NaN is not a time"),
        (["f.csv", "--event-time", "t", "--lags", "1", "--window", "1", "--grace", "-1"], "--grace at least 0"),
        (["f.csv", "--event-time", "t", "--window", "1", "--policy", "none.json"], "cannot read none.json"),
        (["f.csv", "--event-time", "t", "--window", "1", "--policy", "f.csv"], "f.csv is not JSON"),
        (["f.csv", "--event-time", "t", "--window", "1", "--policy", "bad.json"], "is not a job configuration: policy"),
        (["f.csv", "--event-time", "t", "--window", "1", "--policy", "reported.json"], "rows have no watermarks"),
        (["f.csv", "--event-time", "t", "--window", "1", "--policy", "target.json"], "arrival_target acts in batches"),
        (
            ["f.csv", "--event-time", "t", "--window", "1", "--policy", "unframed.json"],
            "arrival_target: A job needs frames",
        ),
    ],
)
def test_invalid_arguments_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    csv(Path("f.csv"), "t,s", "1,a", ",b")
    Path("bad.json").write_text('{"policy": {"type": "none"}}')
    Path("reported.json").write_text('{"policy": {"type": "reported"}}')
    target = {"policy": {"type": "limiting_lag", "lag_ms": 0}, "frames": {"every": "hour"}, "arrival_target": 0.9}
    Path("target.json").write_text(json.dumps(target))
    Path("unframed.json").write_text(json.dumps(target | {"frames": None}))
    error = " ".join(run(*arguments, status=2).stderr.replace("│", " ").split())
    assert says in error
    ended = run("f.csv", "--event-time", "t", "--lags", "1", "--window", "1")
    assert "Left out 1 rows without an event time." in ended.stderr
