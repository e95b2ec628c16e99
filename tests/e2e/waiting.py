"""The one way in which end-to-end tests wait: a predicate, a limit, and what was last seen when the limit is over.

Limits are written for a quiet machine. A loaded one is slow and not wrong: `PATIENCE` times as long is waited before a
test fails, and a minute at the least, which costs nothing where nothing is wrong. A limit is there for a hang alone; it ends
before pytest's own limit of a test, which would not say what was waited for.
"""

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import yaml

from lattice import errors

T = TypeVar("T")
PATIENCE = float(os.environ.get("LATTICE_TEST_PATIENCE", "10"))
LEAST, MOST = 60.0, 600.0
"""The least and the most that a wait becomes by patience, in seconds; one that is longer by itself stays so."""


def patient(within: float) -> float:
    """Returns the seconds after which a wait that takes `within` at the most on a quiet machine is a hang."""
    return max(within, LEAST, min(within * PATIENCE, MOST))


def until(predicate: Callable[[], T], *, within: float, every: float = 0.05, what: str = "") -> T:
    """The predicate's first truthy value; what the cluster cannot answer just now counts as not yet.

    Fails after `within` seconds, made patient, with what was last seen: the predicate's value, or the error it met.
    """
    within = patient(within)
    deadline = time.monotonic() + within
    seen: Any = "nothing"
    while True:
        try:
            if value := predicate():
                return value
            seen = getattr(predicate, "seen", value)
        except (errors.NotFound, errors.Retry, errors.UnknownOutcome) as error:
            seen = error
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what or getattr(predicate, '__name__', 'it')}: not within {within:.0f} s; last seen:\n{_shown(seen)}")
        time.sleep(every)


class Seen:
    """A predicate over something that is fetched: the last thing fetched is what `until` shows."""

    def __init__(self, fetch: Callable[[], T], test: Callable[[T], bool]) -> None:
        self._fetch: Callable[[], Any] = fetch
        self._test: Callable[[Any], bool] = test
        self.seen: Any = None

    def __call__(self) -> Any:
        """What was fetched when the test holds, else None."""
        self.seen = self._fetch()
        return self.seen if self._test(self.seen) else None


def _shown(seen: Any) -> str:
    return yaml.safe_dump(seen, sort_keys=False) if isinstance(seen, dict | list) else repr(seen)
