"""Calls that share round trips: fewer requests, and each call has its own result."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
from redis.exceptions import NoScriptError, RedisError, ResponseError

from tests.support.driver import Driver
from tests.support.proxy import Proxies
from tidegate.store.connection import connect
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.pipelining import Keys, Pipelining, Words

CALLS = 64
RESETS = 20


def words(*given: str | bytes | int) -> tuple[Keys, Callable[[], Words]]:
    """Return no keys, and a function that returns the words of a command."""
    return (), lambda: given


async def requests_received(driver: Driver) -> int:
    return int((await driver.store.redis.info("stats"))["total_reads_processed"])


def test_calls_at_one_time_share_round_trips(driver: Driver, job_name: str) -> None:
    async def measured() -> tuple[list[Any], int]:
        pipelining = Pipelining(driver.store.redis.connection_pool)
        before = await requests_received(driver)
        answers = await asyncio.gather(*(pipelining.call(*words("ECHO", n)) for n in range(CALLS)))
        return answers, await requests_received(driver) - before - 1

    answers, requests = driver(measured())
    assert answers == [str(number) for number in range(CALLS)]
    assert requests <= 2


def test_a_refused_call_does_not_fail_the_others(driver: Driver, job_name: str) -> None:
    async def answers() -> list[Any]:
        pipelining = Pipelining(driver.store.redis.connection_pool)
        commands: tuple[Words, ...] = (
            ("ECHO", "a"),
            ("EVALSHA", "0" * 40, 0),
            ("EVAL", "return redis.error_reply('OTHER reason')", 0),
            ("ECHO", "b"),
        )
        calls = [pipelining.call(*words(*command)) for command in commands]
        return await asyncio.gather(*calls, return_exceptions=True)

    first, missing, failed, last = driver(answers())
    assert (first, last) == ("a", "b")
    assert isinstance(missing, NoScriptError)
    assert isinstance(failed, ResponseError) and str(failed) == "OTHER reason"


def test_a_call_that_cannot_be_packed_does_not_fail_the_others(driver: Driver, job_name: str) -> None:
    """The function that builds a command may fail, for example on invalid data of its caller."""

    def invalid() -> Words:
        raise ValueError("no words")

    async def answers() -> list[Any]:
        pipelining = Pipelining(driver.store.redis.connection_pool)
        calls = [words("ECHO", "a"), ((), invalid), words("ECHO", "b")]
        return await asyncio.gather(*(pipelining.call(*call) for call in calls), return_exceptions=True)

    first, failed, last = driver(answers())
    assert (first, last) == ("a", "b")
    assert isinstance(failed, ValueError)


def test_a_cancelled_caller_leaves_the_others_their_answers(driver: Driver, job_name: str) -> None:
    async def answers() -> list[Any]:
        pipelining = Pipelining(driver.store.redis.connection_pool)
        tasks = [asyncio.create_task(pipelining.call(*words("ECHO", n))) for n in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, cancelled, *others = driver(answers())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert [first, *others] == ["0", "2", "3"]


def test_calls_continue_on_a_new_connection(driver: Driver, job_name: str) -> None:
    async def answers() -> list[Any]:
        redis = driver.store.redis
        pipelining = Pipelining(redis.connection_pool)
        await pipelining.call(*words("ECHO", "before"))
        await redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[no-untyped-call]
        return await asyncio.gather(*(pipelining.call(*words("ECHO", "after")) for _ in range(4)))

    assert driver(answers()) == ["after"] * 4


def test_a_reset_connection_raises_an_error_of_redis(tmp_path: Path) -> None:
    """The service runs on uvloop, whose transports raise RuntimeError after a reset: the answer was 500, not 503."""

    async def run(port: int, reset: Callable[[], None]) -> tuple[list[Any], Any]:
        async with connect(f"redis://127.0.0.1:{port}/0") as redis:
            pipelining, answers = Pipelining(redis.connection_pool), []
            for number in range(RESETS):
                try:
                    answers.append(await pipelining.call(*words("ECHO", number)))
                except RedisError:
                    answers.append("lost")
                reset()
                await asyncio.sleep(0.02)  # the reset may arrive before the next call, or during it
            try:
                await pipelining.call(*words("ECHO", "last"))
            except RedisError:
                answers.append("lost")
            return answers, await pipelining.call(*words("ECHO", "last"))

    with Proxies(1) as proxies, EmbeddedValkey(tmp_path) as server:
        proxy = proxies.to(lambda: server.socket)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            answers, last = runner.run(run(proxy.port, lambda: proxies.call(proxy.cut)))
    assert last == "last"
    assert set(answers) <= {"lost", *map(str, range(RESETS))}


def test_a_server_that_ends_fails_each_waiting_call(tmp_path: Path) -> None:
    """A caller must not wait for an answer that cannot arrive. When the server is back, calls succeed."""

    async def outcome() -> list[Any]:
        with EmbeddedValkey(tmp_path) as server:
            redis = connect(server.url)
            pipelining = Pipelining(redis.connection_pool)
            await pipelining.call(*words("PING"))
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            failed = await asyncio.gather(*(pipelining.call(*words("PING")) for _ in range(3)), return_exceptions=True)
        with EmbeddedValkey(tmp_path):
            failed.append(await pipelining.call(*words("ECHO", "back")))
        await redis.aclose()
        return failed

    *failed, back = asyncio.run(outcome())
    assert all(isinstance(error, RedisError) for error in failed) and len(failed) == 3
    assert back == "back"
