"""What tests of queries have in common: rows, a run to the end, and what a query did with its batches."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame

from tidegate_spark import Batch, Committed, Gate, JobMissing, Stream
from tidegate_spark.testing import CoordinatorProcess

LAG = timedelta(seconds=10)


def rows(*pairs: tuple[str | None, int | None]) -> list[dict[str, Any]]:
    return [{"k": k, "t": t} for k, t in pairs]


def to_the_end(stream: Stream, checkpoint: str, query: str = "q") -> None:
    """Runs a query over all that is there."""
    running = stream.trigger(availableNow=True).start(queryName=query, checkpointLocation=checkpoint)
    assert running.awaitTermination(120)


def kill(process: CoordinatorProcess, empties: bool) -> None:
    """Kills a coordinator; and, if it ``empties``, its Valkey with all that it knew."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.stop(kill=True)
    if empties:
        for child in children:
            child.kill()
        psutil.wait_procs(children)
        shutil.rmtree(process.data_dir)


class Backup:
    """The data of a coordinator as they were at a moment."""

    def __init__(self, own: CoordinatorProcess, directory: Path) -> None:
        self.own, self.directory = own, directory
        own.stop()
        shutil.copytree(own.data_dir, directory)
        own.start()

    def restore(self) -> None:
        """All that came after is lost."""
        kill(self.own, empties=True)
        shutil.copytree(self.directory, self.own.data_dir)
        self.own.start()


def known(gate: Gate) -> dict[str, int | None]:
    """How far the job knows each substream to have come; nothing where it was lost."""
    try:
        return {row["substream"]: row["top"] for row in gate.substreams()}
    except JobMissing:
        return {}


class Sink:
    """Keeps what the user's functions were given, by batch."""

    def __init__(self) -> None:
        self.on_time: dict[int, list[tuple[str | None, int | None]]] = {}
        self.late: dict[int, list[tuple[str | None, int | None]]] = {}
        self.pins: dict[int, int | None] = {}
        self.committed: list[Committed] = []

    def write(self, df: DataFrame, batch: Batch) -> None:
        self.on_time[int(batch)] = sorted(((row.k, row.t) for row in df.collect()), key=str)
        self.pins[int(batch)] = batch.pin

    def write_late(self, df: DataFrame, batch: Batch) -> None:
        self.late[int(batch)] = sorted(((row.k, row.t) for row in df.collect()), key=str)

    def after(self, stream: Stream) -> Stream:
        """The stream with this as its sink."""
        return stream.foreach_batch(self.write).late_to(self.write_late).on_commit(self.committed.append)
