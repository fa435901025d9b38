"""The ledger of late rows in the store equals that of the domain, even if it must drop entries."""

from dataclasses import replace

import pytest

from tests.store.twin import Twin
from tests.support.driver import Driver
from tidegate.domain.batches import PartitionReport
from tidegate.domain.completeness import (
    ENTRIES_KEPT,
    HOURS_KEPT,
    NO_ROWS,
    BatchAccounting,
    LateDisposition,
    RowsOfHour,
)
from tidegate.domain.config import JobConfig
from tidegate.domain.job import Run
from tidegate.domain.policies import LimitingLag

RUN = Run("q", "c", "r")


class Account:
    """A job in the domain and in the store, whose tables are compared after each batch."""

    def __init__(self, driver: Driver) -> None:
        self.twin = Twin(driver, JobConfig(LimitingLag(0)), 0, None)
        self.batch_id = 0

    def commit(self, hours: dict[str, tuple[RowsOfHour, ...]], disposition: LateDisposition = "dropped") -> None:
        machine, store, job, batch = self.twin.machine, self.twin.store, self.twin.job, self.batch_id
        max_event_times = dict.fromkeys([name for name in hours if not name.startswith("?")], 1)
        counts = (replace(NO_ROWS, on_time=1),) * len(hours)
        account = BatchAccounting(tuple(hours), counts, disposition, tuple(hours.values()))
        self.twin.both(lambda: machine.begin(RUN, batch, 0), store.begin(job, RUN, batch, now_ms=0))
        self.twin.both(
            lambda: machine.stage(RUN, batch, PartitionReport(0, max_event_times), 0),
            store.stage(job, RUN, batch, PartitionReport(0, max_event_times), now_ms=0),
        )
        self.twin.both(lambda: machine.commit(RUN, batch, account, 0), store.commit(job, RUN, batch, account, now_ms=0))
        self.batch_id += 1
        self.twin.compare_tables()

    def hours(self) -> list[int]:
        return sorted(self.twin.driver(self.twin.store.reads.late(self.twin.job)).hours)


def test_the_latest_hours_are_kept(driver: Driver) -> None:
    account = Account(driver)
    account.commit({"a": tuple((hour, 10, 1, 2) for hour in range(-20, HOURS_KEPT)), "?": ((9, 5, 0, 5),)})
    assert account.hours() == [*range(HOURS_KEPT)]
    account.commit({"a": ((-5, 3, 0, 3), (HOURS_KEPT, 3, 0, 3))}, "diverted")
    assert account.hours() == [*range(1, HOURS_KEPT + 1)]


def test_the_hour_0_counts(driver: Driver) -> None:
    """A column of zeros is left out of the arguments, but the hours are not such a column."""
    account = Account(driver)
    account.commit({"a": ((0, 2, 0, 1),)})
    assert account.hours() == [0]


@pytest.mark.slow
def test_many_substreams_reduce_the_kept_hours_in_the_store(driver: Driver) -> None:
    account = Account(driver)
    half = ENTRIES_KEPT // 2 + 1
    for hour in range(3):
        account.commit({f"s{number}": ((hour, 1, 0, number % 2),) for number in range(half)})
        assert account.hours() == [hour]
    account.commit({"one": ((4, 1, 0, 0),)})
    assert account.hours() == [2, 4]


def test_sums_of_hours_are_exact(driver: Driver) -> None:
    """Sums must be exact, although Lua computes with doubles."""
    account, most = Account(driver), 2**53 - 1
    account.commit({"a": ((1, most, 0, most - 2),), "b": ((1, most, 3, 1),), "?": ((1, most, 0, 1),)})
    of_hour = account.twin.driver(account.twin.store.reads.late(account.twin.job)).hours[1]
    assert (of_hour.rows, of_hour.dropped, of_hour.updated) == (3 * most, most, 3)


def test_a_deleted_job_leaves_no_ledger(driver: Driver) -> None:
    account = Account(driver)
    account.commit({"a": ((1, 2, 1, 1), (7, 1, 0, 0))})
    store, job = account.twin.store, account.twin.job

    async def keys() -> list[str]:
        return [str(key) for key in await store.redis.keys("*") if f"{{{job}}}" in str(key)]

    assert any("hour_late:1" in key for key in driver(keys()))
    driver(store.delete(job))
    assert driver(keys()) == [f"tidegate:{{{job}}}"]
