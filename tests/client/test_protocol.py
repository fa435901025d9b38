"""Whole queries of the protocol in virtual time, without threads, sockets, files or pauses."""

import copy
from contextlib import suppress
from datetime import timedelta

import pytest

from tests.support.drivers import fold
from tests.support.virtual import LAG, Died, Driver, ModelJob, World
from tidegate_spark.errors import CoordinatorUnavailable
from tidegate_spark.protocol.effects import Effect, Send
from tidegate_spark.protocol.retry import SHORT_WAIT_S, OnOutage

WAITS = OnOutage.of(timedelta(minutes=1))
CONTINUES = OnOutage.of("continue")
BATCHES = 4


def times(batch_id: int) -> dict[str, int]:
    """Return the max event times of a batch: of a fast and of a slow substream."""
    return {"a": 100_000 * (batch_id + 1), "b": 60_000 * (batch_id + 1)}


def known(world: World) -> dict[str, int]:
    """Return the max event times at the coordinator."""
    assert world.coordinator.job is not None
    found: dict[str, int] = world.coordinator.job.max_event_times
    return found


class Query:
    """A query over batches of :func:`times`, which runs each batch until it has finished once."""

    def __init__(self, world: World, on_outage: OnOutage) -> None:
        self.world, self.on_outage = world, on_outage
        self.runs = self.finished = 0
        self.pinned_by_batch: dict[int, int | None] = {}

    def run(self, away: range = range(0)) -> Driver:
        """Start the query and run the remaining batches. The coordinator is unavailable in the batches in ``away``."""
        self.runs += 1
        driver = Driver(self.world, self.runs, self.on_outage)
        driver.run(driver.protocol.start())
        for batch_id in range(self.finished, BATCHES):
            self.world.coordinator.away = batch_id in away
            opened = driver.begin(batch_id)
            pinned_watermark = opened.stored.pinned_watermark
            assert self.pinned_by_batch.setdefault(batch_id, pinned_watermark) == pinned_watermark, (
                "the replay must have the same pinned watermark"
            )
            driver.finish(opened, fold(**times(batch_id)))
            self.finished = batch_id + 1
        self.world.coordinator.away = False
        driver.run(driver.protocol.backlog.flush_again())
        return driver


def check_end(world: World, point: str) -> None:
    """Check that every batch was reported exactly once and that the backlog is empty."""
    job = world.coordinator.job
    assert job is not None
    assert known(world) == times(BATCHES - 1), point
    assert job.rows == dict.fromkeys(range(BATCHES), 2), point
    assert not [name for name in world.documents if name.startswith("backlog")], point
    assert (job.latest, job.open_run) == (BATCHES - 1, None), point


def test_a_whole_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query continues through an outage, sends its backlog and restores a coordinator that lost its state."""
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("the protocol slept"))
    world = World()
    driver = Driver(world, 1, CONTINUES)
    driver.run(driver.protocol.start())
    assert driver.batch(0, fold(a=100_000, b=40_000)).stored.pinned_watermark is None
    assert driver.batch(1, fold(a=110_000)).stored.pinned_watermark == 30_000
    world.coordinator.away = True
    opened = driver.batch(2, fold(a=120_000, b=45_000))
    assert (opened.acknowledged, opened.stored.assumed, opened.stored.pinned_watermark) == (False, True, 30_000)
    assert world.flusher_started and "backlog/2" in world.documents
    assert driver.run(driver.protocol.backlog.flush_again()), "the backlog must not be empty"
    world.coordinator.away = False
    assert not driver.run(driver.protocol.backlog.flush_again()), "the backlog must be empty"
    assert known(world) == {"a": 120_000, "b": 45_000}
    world.coordinator.job = None
    driver.protocol.calls.watermark_token = None  # as if the coordinator had another secret
    driver.heartbeat(2)
    assert known(world) == {"a": 120_000, "b": 45_000}
    assert driver.batch(3, fold(a=130_000)).stored.pinned_watermark == 35_000


def test_waiting_is_reported_and_takes_no_real_time() -> None:
    """The client reports how long it waited, so an outage does not count towards `idle_timeout`."""
    world = World()
    driver = Driver(world, 1, WAITS)
    driver.run(driver.protocol.start())
    driver.batch(0, fold(a=100_000))
    world.coordinator.away = True
    began = world.clock.time()
    world.clock.after(20, lambda: setattr(world.coordinator, "away", False))
    driver.batch(1, fold(a=110_000))
    waited_s = world.clock.time() - began
    assert 20 <= waited_s < 30
    assert world.coordinator.waited_ms[-1] == pytest.approx(1000 * waited_s, abs=1)


def test_a_batch_fails_after_the_longest_outage() -> None:
    """The client stores no pinned watermark, so the next run begins the batch again."""
    world = World()
    driver = Driver(world, 1, WAITS)
    driver.run(driver.protocol.start())
    world.coordinator.away = True
    began = world.clock.time()
    with pytest.raises(CoordinatorUnavailable, match="Nothing is lost"):
        driver.begin(0)
    assert world.clock.time() - began == pytest.approx(60)
    assert "pinned_watermarks/0" not in world.documents


def test_a_stopped_query_stops_waiting() -> None:
    """A pause ends with an error if the query was stopped."""
    world = World()
    driver = Driver(world, 1, WAITS)
    driver.run(driver.protocol.start())
    world.coordinator.away = world.stopped = True
    with pytest.raises(CoordinatorUnavailable, match="the query was stopped"):
        driver.begin(0)


@pytest.mark.parametrize("on_outage", [WAITS, CONTINUES], ids=["waits", "continues"])
def test_a_crash_at_any_effect_loses_and_repeats_nothing(on_outage: OnOutage) -> None:
    """After a crash before or after any effect, the next run restores the state from the files."""
    away = range(1, 3) if on_outage.continues else range(0)
    whole = World()
    Query(whole, on_outage).run(away)
    check_end(whole, "without a crash")
    assert len(whole.points) > 60
    for fatal, point in enumerate(whole.points):
        world = World()
        query = Query(world, on_outage)
        world.dies_at = fatal
        with suppress(Died):
            query.run(away)
        world.dies_at, world.coordinator.away = None, False
        driver = query.run()
        check_end(world, point)
        driver.heartbeat(BATCHES - 1)
        check_end(world, point)


@pytest.mark.parametrize("loses", ["everything", "the end of its log"])
def test_a_coordinator_that_loses_state_at_any_request_is_restored(loses: str) -> None:
    """In the end, the coordinator has all max event times and the watermark of the last batch."""
    whole = World()
    Query(whole, WAITS).run()
    requests = sum(point.startswith("before Send") for point in whole.points)
    for number in range(1, requests):
        world = World()
        states: list[ModelJob | None] = [copy.deepcopy(world.coordinator.job)]
        sent = 0

        def lose(
            effect: Effect, world: World = world, states: list[ModelJob | None] = states, number: int = number
        ) -> None:
            nonlocal sent
            if isinstance(effect, Send):
                sent += 1
                if sent == number:
                    world.coordinator.job = None if loses == "everything" else states[max(0, len(states) - 3)]
                states.append(copy.deepcopy(world.coordinator.job))

        world.before = lose
        driver = Query(world, WAITS).run()
        driver.heartbeat(BATCHES - 1)
        assert known(world) == times(BATCHES - 1), f"{loses} at request {number}"
        assert world.coordinator.job is not None
        assert world.coordinator.job.watermark == times(BATCHES - 1)["b"] - LAG


def test_a_batch_that_begins_during_a_flush_follows_the_backlog() -> None:
    """The flush and the begin run alternately. The batches arrive in order after any number of the flush's effects."""
    for turns in range(1, 12):
        world = World()
        query = Driver(world, 1, CONTINUES)
        query.run(query.protocol.start())
        query.batch(0, fold(**times(0)))
        world.coordinator.away = True
        for batch_id in (1, 2):
            query.batch(batch_id, fold(**times(batch_id)))
        world.coordinator.away = False
        flusher = query.protocol.backlog.flush_again()
        effect = next(flusher)
        for _ in range(turns):
            effect = flusher.send(world.perform(effect))
        opened = query.begin(3)
        assert not opened.acknowledged, "the flush must still be running"
        query.finish(opened, fold(**times(3)))
        with suppress(StopIteration):
            while True:
                effect = flusher.send(world.perform(effect))
        check_end(world, f"after {turns} turns")


def test_the_pauses_between_attempts_grow_to_a_maximum() -> None:
    """A minute of outage takes 12 to 40 attempts, so that many queries do not overload the coordinator."""
    world = World()
    driver = Driver(world, 1, WAITS)
    world.coordinator.away = True
    with pytest.raises(CoordinatorUnavailable):
        driver.run(driver.protocol.start())
    attempts = sum(point.startswith("before Send") for point in world.points)
    assert 12 <= attempts <= 40
    assert SHORT_WAIT_S < 60
