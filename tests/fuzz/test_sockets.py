"""Hostile requests over sockets: no request makes the coordinator fail, hang or grow. ``make fuzz`` sends more."""

import time
from collections import defaultdict
from pathlib import Path

from tests.fuzz.run import Run

REQUESTS, WARM_UP = 8_000, 4_000


def test_hostile_requests(tmp_path: Path) -> None:
    """Every answer is a success, a documented problem, or the plain 400 to bytes that are not HTTP."""
    seed = int(time.time())
    run = Run(tmp_path, seed, print)
    result = run.numbers(REQUESTS, WARM_UP)
    assert result.wrong(seed) == [], f"seed {seed}"
    assert result.requests >= REQUESTS
    statuses = defaultdict(set)
    for operation, status in result.statuses:
        statuses[operation].add(status // 100)
    unreached = [operation for operation in run.cases.operations if 2 not in statuses[operation]]
    assert unreached == [], "no valid request reached these operations"
    assert len(result.kinds) == 15
