"""Runs calls that may block for ever in threads: one without an answer delays neither the loop, nor other kinds of calls, nor the exit."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from lattice.errors import Retry

_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")


class Threads:
    """Runs one kind of call in a few threads; `what` names in errors what the calls wait for."""

    def __init__(self, what: str, *, count: int, within: float) -> None:
        self._what, self._within = what, within
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle, self._free = 0, count
        self._lock = threading.Lock()

    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Calls the function in one of the threads and returns its result; passes on what it raises, an OSError as Retry (StateUnwritable).

        Raises Retry also where it has not returned in time: a call that has begun goes on, and may take effect later.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()

        def run() -> None:
            """Calls the function in the thread, and hands result or error to the loop; does nothing where nobody waits any more."""
            if answer.done():
                return  # nobody waits any more, and it has not begun
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                _post(loop, _fail, answer, error)
            else:
                _post(loop, _answer, answer, result)

        self._submit(run)
        try:
            return await asyncio.wait_for(answer, self._within)
        except OSError as error:  # a TimeoutError is one
            said = f"has not answered for {self._within:g} s" if answer.cancelled() else f"does not serve: {error}"
            raise Retry(f"{self._what} {said}", reason="StateUnwritable") from error

    def _submit(self, call: Callable[[], None]) -> None:
        """Queues a call, and begins a thread for it where none is idle and there may be one more."""
        with self._lock:
            begins = not self._idle and self._free > 0
            if begins:
                self._free -= 1
            elif self._idle:
                self._idle -= 1
        self._calls.put(call)
        if begins:
            threading.Thread(target=self._work, name=f"lattice {self._what}", daemon=True).start()

    def _work(self) -> None:
        """Runs queued calls for ever, in a thread of its own."""
        while True:
            self._calls.get()()
            with self._lock:
                self._idle += 1


def _post(loop: asyncio.AbstractEventLoop, what: Callable[[asyncio.Future[_T], _R], None], answer: asyncio.Future[_T], with_: _R) -> None:
    """Calls a function with these two arguments on the loop from another thread; nothing where the loop has ended."""
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(what, answer, with_)


def _answer(answer: asyncio.Future[_T], result: _T) -> None:
    """Sets the result of a future, unless it is done."""
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[_T], error: BaseException) -> None:
    """Sets the exception of a future, unless it is done."""
    if not answer.done():
        answer.set_exception(error)


async def whole(call: Awaitable[_T]) -> _T:
    """Awaits a call to its end and returns its result; raises a cancellation of the caller only then: its effects precede an undo's."""
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
