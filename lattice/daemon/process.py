"""Runs a program's main coroutine: the event loop, signals, and the exit code.

0: ended, or was asked to end; 1: an error that a restart may cure; 2: wrong settings or a refused request; 3: what was read cannot be ours
(Corrupt), so that a restart cures nothing and a person must look; 130: ended by a second signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from lattice.daemon import loops
from lattice.daemon.logs import event
from lattice.daemon.tasks import is_cancelled
from lattice.errors import Corrupt, LatticeError, Rejected, Retry

log = logging.getLogger(__name__)

EXIT_OK, EXIT_ERROR, EXIT_REFUSED, EXIT_CORRUPT, EXIT_FORCED = 0, 1, 2, 3, 130
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_handler: ContextVar[Callable[[int], None] | None] = ContextVar("handler of signals", default=None)


def run(main: Callable[[], Awaitable[None]], program: str) -> int:
    """Runs `main` until it ends, or is cancelled by SIGTERM or SIGINT (a second one ends the process at once, code 130); returns the exit
    code. An error that is no Exception, such as SystemExit, is logged and raised.

    The last line of the log says why the process ends; for a fatal signal the stacks of all threads are printed.
    """
    with contextlib.suppress(ValueError, OSError):  # stderr is no file: nothing can be written there from a signal
        faulthandler.enable()
    received: list[signal.Signals] = []
    try:
        with asyncio.Runner(loop_factory=loops.factory()) as runner:
            runner.run(_watched(main, program, received))
    except asyncio.CancelledError as error:
        if received:
            event(log, "Stopped", program=program, signal=received[0].name)
            return EXIT_OK
        message = "its main task was cancelled, and no signal had asked for that"
        event(log, "Failed", logging.ERROR, error=error, program=program, reason="Cancelled", message=message)
        return EXIT_ERROR
    except Exception as error:  # around the process: the exit code says what happened
        return _exit_code(error, program)
    except BaseException as error:
        event(log, "Failed", logging.ERROR, error=error, program=program, reason=type(first_cause(error)).__name__, message=str(error))
        raise
    event(log, "Ended", program=program, message="its main task is done")
    return EXIT_OK


async def _watched(main: Callable[[], Awaitable[None]], program: str, received: list[signal.Signals]) -> None:
    """Awaits `main`, and cancels it at the first signal, which is appended to `received`."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None, "runs inside a task"  # noqa: S101 - for the type checker

    def on_signal(number: int) -> None:
        """Cancels the main task at the first signal; ends the process at once at the second."""
        name = signal.Signals(number)
        if received:
            event(log, "Forced", logging.WARNING, program=program, signal=name.name, message="a second signal ends it at once")
            os._exit(EXIT_FORCED)
        received.append(name)
        event(log, "Stopping", program=program, signal=name.name)
        task.cancel()

    _handler.set(on_signal)
    listen_to_signals()
    event(log, "Started", program=program, pid=os.getpid())
    try:
        await main()
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def listen_to_signals() -> None:
    """Installs the signal handlers of `run` again after a library has replaced them; outside of `run` it removes them."""
    loop, heard = asyncio.get_running_loop(), _handler.get()
    for number in _SIGNALS:
        if heard is None:
            loop.remove_signal_handler(number)
        else:
            loop.add_signal_handler(number, heard, number)


async def endless(work: Awaitable[object]) -> None:
    """Awaits work that must not end before it is cancelled from outside: a task group would go on silently without it.

    Raises Retry when the work returns, or is cancelled although nobody cancelled this task; an error of the work is passed on.
    """
    name = getattr(work, "__qualname__", type(work).__name__)
    try:
        await work
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise Retry(f"{name} was cancelled from inside", reason="TaskEnded") from error
    raise Retry(f"{name} has ended by itself", reason="TaskEnded")


def first_cause(error: BaseException) -> BaseException:
    """Returns the first error inside nested exception groups; an error that is no group is returned itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _exit_code(error: Exception, program: str) -> int:
    """Logs an error that ended a program, with its trace where it is none of Lattice's own, and returns the program's exit code for it: 3
    for Corrupt, 2 for Rejected, else 1.
    """
    cause = first_cause(error)
    if isinstance(cause, LatticeError):
        event(log, "Failed", logging.ERROR, program=program, reason=cause.reason, message=cause.message)
        if isinstance(cause, Corrupt):
            return EXIT_CORRUPT
        return EXIT_REFUSED if isinstance(cause, Rejected) else EXIT_ERROR
    event(log, "Failed", logging.ERROR, error=error, program=program, reason=type(cause).__name__, message=str(cause))
    return EXIT_ERROR
