"""Finds requests that the API server let pass because the webhook did not answer, from the server's own metrics.

Only the API server that the operator is connected to is read; of several, each has its own count (docs/howto/limit-a-tenant.md).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError
from lattice.lifecycle.conditions import FALSE, TRUE, with_condition
from lattice.units import format_duration, format_time
from lattice.views import Condition
from lattice_controllers.operator.configs import NAME as CONFIG
from lattice_controllers.operator.metrics import OperatorMetrics

log = logging.getLogger(__name__)

CONDITION: Final = "WebhookAnswering"
LOOK_SECONDS: Final = 15.0
QUIET_SECONDS: Final = 600.0
"""Time without another such request until the condition is True again."""
_COUNT = re.compile(r'^apiserver_admission_webhook_fail_open_count\{[^}]*name="[a-z]+\.lattice\.dev"[^}]*\} ([0-9.e+]+)$', re.MULTILINE)


def passed(text: str) -> int:
    """Returns how many requests have passed without an answer of Lattice's webhooks, by the text of the API server's metrics."""
    return sum(int(float(count)) for count in _COUNT.findall(text))


class ConfigQueue(Protocol):
    """The work queue of the LatticeConfig."""

    def add(self, key: str) -> None:
        """Enqueues the LatticeConfig of this name to be reconciled."""
        ...


class FailOpen:
    """Counts the requests that passed without the webhook, and states the condition WebhookAnswering in the LatticeConfig.

    `read` returns the API server's metrics; `configs` is the queue of the LatticeConfig, which then asks `stated`.
    """

    def __init__(self, read: Callable[[], Awaitable[str]], clock: Clock, measured: OperatorMetrics, configs: ConfigQueue) -> None:
        self._read = read
        self._clock = clock
        self._measured = measured
        self._configs = configs
        self._before: int | None = None
        self._count = 0
        self._first = self._latest = 0.0
        self._unread = ""

    async def run(self) -> None:
        """Reads the API server's metrics every 15 s until cancelled, and has `see` count what they show; an error of the server is logged
        once as long as its reason stays the same.
        """
        while True:
            try:
                self.see(await self._read())
                self._unread = ""
            except LatticeError as error:
                if error.reason != self._unread:
                    event(log, "ServerMetricsUnread", logging.WARNING, reason=error.reason, message=error.message)
                self._unread = error.reason
            await self._clock.sleep(LOOK_SECONDS)

    def see(self, text: str) -> None:
        """Adds the failures that the API server's metrics (`text`) show since the last call to count and metric; the first call only takes
        the count.

        A lower count means a restarted or another server: it is added whole. Enqueues the LatticeConfig at each addition, and when none
        has come for 10 minutes, upon which the condition counts from 0.
        """
        now, count = self._clock.now(), passed(text)
        more = 0 if self._before is None else count - self._before if count >= self._before else count
        self._before = count
        if more:
            self._first = self._first if self._count else now
            self._count, self._latest = self._count + more, now
            self._measured.failed_open.inc(more)
            event(log, "The API server failed open", logging.WARNING, requests=more)
            self._configs.add(CONFIG)
        elif self._count and now - self._latest >= QUIET_SECONDS:
            self._count = 0
            self._configs.add(CONFIG)

    def stated(self, conditions: tuple[Condition, ...], generation: int, now: str) -> tuple[Condition, ...]:
        """Returns the conditions with WebhookAnswering added or replaced, False while requests have passed within the last 10 minutes;
        unchanged before the metrics were first read.
        """
        if self._before is None:
            return conditions
        if not self._count:
            return with_condition(conditions, CONDITION, TRUE, "WebhookAnswers", "every request is judged", generation=generation, now=now)
        requests = "1 request has" if self._count == 1 else f"{self._count} requests have"
        message = (
            f"{requests} passed the API server since {format_time(self._first)} without the admission webhook, which did not answer; "
            "limits are held by policies and by the scheduler (NotAdmitted): look at the webhook's log and load; "
            f"this is True again after {format_duration(QUIET_SECONDS)} without another one"
        )
        return with_condition(conditions, CONDITION, FALSE, "WebhookFailedOpen", message, generation=generation, now=now)
