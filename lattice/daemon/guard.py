"""Runs work by key that may fail by itself: an error is logged and backs off its key, while all other keys go on.

It is the synchronous counterpart of the keyed queue, for work that a loop does in turn, such as the cycle of one vcluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import FIRST_BACK_OFF, LONGEST_BACK_OFF
from lattice.daemon.tasks import CANCELLED_INSIDE, is_cancelled
from lattice.errors import Corrupt, LatticeError, Retry

log = logging.getLogger(__name__)

MOST_DOUBLED: Final = 20
"""Failures in a row after which the back-off grows no more."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The state of a key that fails: the last error's reason, failures in a row, and when it may be tried again (monotonic seconds)."""

    reason: str
    count: int
    due: float


class Guard:
    """Remembers which keys fail and when each may be tried again; `what` names the work in the log."""

    def __init__(self, clock: Clock, what: str) -> None:
        self._clock = clock
        self._what = what
        self._failures: dict[str, Failure] = {}

    def waits(self, key: str) -> Failure | None:
        """Returns the failure of a key that still backs off; None: the key may be tried."""
        failure = self._failures.get(key)
        return failure if failure is not None and self._clock.monotonic() < failure.due else None

    def drop(self, key: str) -> None:
        """Drops the failures of a key whose object is gone."""
        self._failures.pop(key, None)

    def attempt(self, key: str, work: Callable[[], object]) -> Failure | None:
        """Runs the work of a key, also while the key backs off; returns its failure, None: it succeeded, and former failures are dropped.

        A failure is logged, and the back-off grows with each in a row. Raises Corrupt, which concerns more than one key.
        """
        try:
            work()
        except Corrupt:
            raise
        except Exception as error:  # around one key: everything else goes on
            return self._failed(key, error)
        self._failures.pop(key, None)
        return None

    async def attempt_async(self, key: str, work: Callable[[], Awaitable[object]]) -> Failure | None:
        """Awaits the work of a key, also while the key backs off; returns its failure, None: it succeeded, and former failures are dropped.
        Work that is cancelled from inside has failed.

        A failure is logged, and the back-off grows with each in a row. Raises Corrupt, which concerns more than one key, and a cancellation
        of the caller.
        """
        try:
            await work()
        except Corrupt:
            raise
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return self._failed(key, Retry(CANCELLED_INSIDE, reason="Cancelled"))
        except Exception as error:  # around one key: everything else goes on
            return self._failed(key, error)
        self._failures.pop(key, None)
        return None

    def _failed(self, key: str, error: Exception) -> Failure:
        """Notes and logs that the work of a key failed, and returns the failure, which says until when it backs off: twice as long at each
        failure in a row, 60 s at most.

        Errors of Lattice's own are warnings, others are logged with their trace.
        """
        before = self._failures.get(key)
        count = 1 if before is None else before.count + 1
        delay = min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(count - 1, MOST_DOUBLED))
        expected = isinstance(error, LatticeError)
        reason = error.reason if isinstance(error, LatticeError) else type(error).__name__
        failure = self._failures[key] = Failure(reason, count, self._clock.monotonic() + delay)
        event(
            log, "GuardedWorkFailed", logging.WARNING if expected else logging.ERROR, error=None if expected else error,
            work=self._what, key=key, reason=reason, message=str(error), failures=count, retry_seconds=round(delay, 3),
        )  # fmt: skip
        return failure
