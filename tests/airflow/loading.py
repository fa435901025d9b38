"""A job whose frames a test finishes over REST."""

from datetime import datetime
from typing import Any

import httpx

LAG_MS = 10
HOUR_MS = 3_600_000
RUN = {"query_id": "loader", "run_id": "run-1"}


def at(time: str) -> int:
    """Return a time in milliseconds."""
    return int(datetime.fromisoformat(time).timestamp() * 1000)


class Loader:
    """A job with frames and one query, which commits batches without Spark.

    Args:
        http: Client of the coordinator, with a key that may create jobs.
        job: Name of the job.
        frames: Declaration of the frames.
    """

    def __init__(self, http: httpx.Client, job: str, **frames: Any) -> None:
        self.http, self.job, self.path = http, job, f"/v1/jobs/{job}"
        self.batches = 0
        config = {"policy": {"type": "limiting_lag", "lag_ms": LAG_MS}, "frames": {"correction_delay_ms": 0} | frames}
        http.put(self.path, json=config, headers={"If-None-Match": "*"}).raise_for_status()

    def commit(self, substream: str, on_time: int, *late: int) -> None:
        """Commit a batch with an on-time row of a substream, and late rows that are dropped."""
        batch = f"{self.path}/queries/loader/batches/{self.batches}"
        of_batch = RUN | {"query": "loader", "batch_id": self.batches, "partition": 0}
        report = {"substreams": [substream], "max_event_times": [on_time], "counts": [1 + len(late)]}
        rows = {"substreams": [substream], "on_time": [1], "late": [len(late)], "null_event_time": [0]}
        frames = [[on_time, 1, 0, 0], *([time, 1, 0, 1] for time in late)]
        self.http.put(batch, json=RUN).raise_for_status()
        self.http.post(f"{self.path}:report", json=report | {"batch": of_batch}).raise_for_status()
        answer = self.http.post(f"{batch}:commit", json=RUN | {"rows": rows | {"frames": frames}})
        assert answer.status_code == 200, answer.text
        self.batches += 1

    def finish(self, hour: int, late: tuple[int, ...] = (), substream: str = "HNL") -> None:
        """Commit a row in a frame of an hour, and a row that moves the watermark past the end of that frame."""
        self.commit(substream, hour + 1000, *late)
        self.commit(substream, hour + HOUR_MS + 1000)

    def frame(self, time: int) -> Any:
        answer = self.http.get(f"{self.path}/frames/{time}")
        assert answer.status_code == 200, answer.text
        return answer.json()["frame"]
