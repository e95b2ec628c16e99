"""The outside of a program: the event loop, signals, and the exit code.

0: ended, or was asked to end; 1: an error that a restart may cure; 2: wrong settings or a refused request;
3: what was read cannot be ours (Corrupt), so a restart cures nothing and a person must look; 130: ended by a second signal.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
from collections.abc import Awaitable, Callable

from lattice.daemon.logs import event
from lattice.errors import Corrupt, LatticeError, Rejected

log = logging.getLogger(__name__)

EXIT_OK, EXIT_ERROR, EXIT_REFUSED, EXIT_CORRUPT, EXIT_FORCED = 0, 1, 2, 3, 130
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(main: Callable[[], Awaitable[None]], program: str) -> int:
    """Run `main` until it ends or SIGTERM or SIGINT comes (it is cancelled; a second one ends at once); the exit code."""
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_watched(main, program))
    except asyncio.CancelledError:
        event(log, "Stopped", program=program)
        return EXIT_OK
    except Exception as error:  # around the process: the exit code says what happened
        return _exit_code(error, program)
    event(log, "Ended", program=program)
    return EXIT_OK


async def _watched(main: Callable[[], Awaitable[None]], program: str) -> None:
    """`main`, cancelled by the first signal."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None, "runs inside a task"  # noqa: S101 - for the type checker
    received: list[int] = []

    def on_signal(number: int) -> None:
        if received:
            os._exit(EXIT_FORCED)
        received.append(number)
        event(log, "Stopping", program=program, signal=signal.Signals(number).name)
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    event(log, "Started", program=program, pid=os.getpid())
    try:
        await main()
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed, else asyncio's own loop."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


def first_cause(error: BaseException) -> BaseException:
    """The first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _exit_code(error: Exception, program: str) -> int:
    cause = first_cause(error)
    if isinstance(cause, LatticeError):
        event(log, "Failed", logging.ERROR, program=program, reason=cause.reason, message=cause.message)
        if isinstance(cause, Corrupt):
            return EXIT_CORRUPT
        return EXIT_REFUSED if isinstance(cause, Rejected) else EXIT_ERROR
    event(log, "Failed", logging.ERROR, error=error, program=program, reason=type(cause).__name__, message=str(cause))
    return EXIT_ERROR
