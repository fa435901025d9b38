"""The offsets of as many partitions as a commit may tell."""

from tests.support.driver import records, with_store
from tests.support.store import JobStore
from tidegate.domain.config import JobConfig
from tidegate.domain.job import Run
from tidegate.domain.offsets import BatchOffsets, partition_statuses
from tidegate.domain.policies import LimitingLag
from tidegate.store.embedded import EmbeddedValkey
from tidegate.views.types import MAX_PARTITIONS

RUN = Run("q", "checkpoint", "run")


def test_a_commit_tells_the_offsets_of_many_partitions(valkey: EmbeddedValkey, job_name: str) -> None:
    names = [f"topic-{number % 10}/{number}" for number in range(MAX_PARTITIONS)]
    latest, unknown = [100 + number for number in range(MAX_PARTITIONS)], [None] * MAX_PARTITIONS

    async def run(store: JobStore) -> None:
        await store.configure(job_name, JobConfig(LimitingLag(0)), {}, None)
        for batch in range(2):
            starts, ends = [batch * 10] * MAX_PARTITIONS, [batch * 10 + 10] * MAX_PARTITIONS
            await store.begin(job_name, RUN, batch)
            await store.commit(job_name, RUN, batch, None, offsets=BatchOffsets(names, starts, ends, latest, unknown))
        table = await store.reads.queries(job_name)
        assert [row.partition for row in partition_statuses(table.offsets["q"])] == names
        found = table.rows[0].offsets
        assert found is not None
        assert (found.unread, found.skipped) == (sum(latest) - 20 * MAX_PARTITIONS, 0)
        assert [row.partition for row in found.most_behind] == names[:-11:-1]

    with_store(valkey, run)


def test_all_partitions_but_one_are_created_again_or_gone(valkey: EmbeddedValkey, job_name: str) -> None:
    names = [f"t/{number}" for number in range(MAX_PARTITIONS)]

    def told(partitions: list[str], start: int, end: int) -> BatchOffsets:
        size = len(partitions)
        unknown = [None] * size
        columns = ("topic", "partition")
        return BatchOffsets(partitions, [start] * size, [end] * size, unknown, unknown, substream_columns=columns)

    async def run(store: JobStore) -> None:
        await store.configure(job_name, JobConfig(LimitingLag(0)), {}, None)
        await store.actions.declare(job_name, "q", names, dict.fromkeys(names, 7))
        for batch, offsets in enumerate((told(names, 0, 50), told(names, 50, 20), told(names[:1], 20, 30))):
            await store.begin(job_name, RUN, batch)
            await store.commit(job_name, RUN, batch, None, offsets=offsets)
        summary = (await store.reads.status(job_name)).summary
        assert (summary.done, summary.active) == (MAX_PARTITIONS - 1, 1)
        kinds = [record.kind for _, record in await records(store, job_name)]
        assert (kinds.count("restarted"), kinds.count("ended")) == (1, 1)

    with_store(valkey, run)
