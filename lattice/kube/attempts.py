"""Decides when the transport itself repeats a request: reads without an answer, and requests that the server asks to repeat."""

from __future__ import annotations

from collections.abc import Callable

from lattice.errors import LatticeError, Retry
from lattice.kube.requests import Request

READ_ATTEMPTS = 4
ASKED_ATTEMPTS = 5
LONGEST_ASKED_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.1


def pause(request: Request, error: LatticeError, attempt: int, jitter: Callable[[], float]) -> float | None:
    """Returns the seconds until the request is repeated; None: the error is passed on, as after 4 attempts of a read, 5 where the server
    names a time, or where that is above 10 s. `attempt` counts from 1.

    A request is repeated only after Retry, where nothing can have happened: a read, or an answer with Retry-After. `jitter` returns a
    number from 0 to 1.
    """
    if not isinstance(error, Retry):
        return None
    back_off = FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1) * (0.5 + jitter())
    if error.after_seconds is not None:
        if attempt >= ASKED_ATTEMPTS or error.after_seconds > LONGEST_ASKED_SECONDS:
            return None
        return max(error.after_seconds * (1.0 + 0.5 * jitter()), back_off)
    return back_off if request.safe and attempt < READ_ATTEMPTS else None
