"""Queries with keys: what a key of the role ``report`` permits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.streams import LAG, Sink, rows, to_the_end
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate_spark import Refused, limiting_lag
from tidegate_spark.testing import CoordinatorProcess, FileBatches


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[CoordinatorProcess, dict[Role, str]]]:
    file = tmp_path / "keys.json"
    keys = {role: keyring.create(file, f"key-{role}", role, "orders") for role in Role}
    with CoordinatorProcess(tmp_path / "coordinator", keys_file=str(file)) as process:
        yield process, keys


def test_a_key_of_the_role_report_suffices_for_a_query(
    spark: SparkSession,
    guarded: tuple[CoordinatorProcess, dict[Role, str]],
    source: FileBatches,
    checkpoint: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The query creates the job, reports from executors and reads. Its key is written to no log and no file."""
    process, keys = guarded
    job = process.job(job="orders-eu", config=limiting_lag(LAG), key=keys[Role.REPORT])
    sink = Sink()
    source.add(*rows(("a", 100_000), ("b", 50_000)))
    to_the_end(sink.after(job.stream(source.stream(spark), event_time="t", substream="k").declare("a")), checkpoint)
    assert (job.status()["watermark"], len(job.substreams()), len(job.queries())) == (40_000, 2, 1)
    job.done("q", ["b"], "ended")
    with pytest.raises(Refused, match="key-report has the role report; this call needs operate or admin"):
        job.retire("q", "over")
    process.job(job="orders-eu", key=keys[Role.OPERATE]).retire("q", "over")
    output = capfd.readouterr()
    written = output.out + output.err + caplog.text + (process.data_dir / "coordinator.log").read_text()
    kept = "".join(path.read_text(errors="replace") for path in Path(checkpoint).rglob("*") if path.is_file())
    assert keys[Role.REPORT].split("_", 2)[2] not in written + kept


@pytest.mark.parametrize(("role", "job_name"), [(Role.READ, "orders"), (Role.REPORT, "payments"), (None, "orders")])
def test_a_query_with_an_unsuitable_key_fails_at_once(
    spark: SparkSession,
    guarded: tuple[CoordinatorProcess, dict[Role, str]],
    source: FileBatches,
    checkpoint: str,
    role: Role | None,
    job_name: str,
) -> None:
    """The query must not retry for ten minutes, as it would while the coordinator does not answer."""
    process, keys = guarded
    job = process.job(job=job_name, config=limiting_lag(LAG), key=None if role is None else keys[role])
    source.add(*rows(("a", 100_000)))
    with pytest.raises((Refused, StreamingQueryException), match=r"role|begin with 'orders'|needs a key"):
        to_the_end(Sink().after(job.stream(source.stream(spark), event_time="t", substream="k")), checkpoint)
