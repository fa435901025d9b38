"""A task that watches whether the configuration of Redis can lose state.

The configuration can change while a coordinator runs: an operator changes it, or a failover selects another server.
"""

import asyncio
import logging

from redis.exceptions import RedisError

from tidegate.runtime.metrics import Metrics
from tidegate.store.checks import RISKS, all_risks
from tidegate.store.servers import Servers

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
"""Interval of the checks. A check takes two round trips to each server."""


async def watch_risks(servers: Servers, url: str, metrics: Metrics) -> None:
    """Check all servers at an interval until cancelled. Log each risk once, and export all risks as a metric."""
    logged: set[str] = set()
    while True:
        try:
            found = await all_risks(servers, url)
        except (RedisError, OSError) as error:  # readyz, the sweeper and the metrics show an outage of Redis
            log.debug("Cannot check the configuration of Redis: %s", error)
        else:
            for risk in found:
                if risk.text not in logged:
                    log.log(logging.ERROR if risk.is_certain else logging.WARNING, "%s", risk.text)
            if logged and not found:
                log.warning("The configuration of Redis loses no state any more.")
            logged = {risk.text for risk in found}
            for name in RISKS:
                metrics.store_risk.labels(name).set(any(risk.name == name for risk in found))
        await asyncio.sleep(INTERVAL_S)
