"""Questions that are asked once for all who ask at the same time."""

from __future__ import annotations

import asyncio
import gc

from lattice.errors import Denied
from lattice_gateway.memory import Once


async def test_a_question_that_fails_when_nobody_waits_any_more_is_no_complaint_and_is_asked_again() -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    once: Once[str, int] = Once()
    goes_on = asyncio.Event()

    async def fails() -> int:
        await goes_on.wait()
        raise Denied("a server that has just started knows no rights")

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(once.run("a", fails))
        await asyncio.sleep(0)
        asking.cancel()
    del asking, group  # what they remember of the cancellation holds the question
    goes_on.set()
    for _ in range(4):
        await asyncio.sleep(0)
    gc.collect()
    assert complaints == []

    async def answers() -> int:
        return 3

    assert await once.run("a", answers) == 3


async def test_who_still_waits_is_told_of_the_failure() -> None:
    once: Once[str, int] = Once()

    async def fails() -> int:
        raise Denied("no")

    for asked in await asyncio.gather(once.run("a", fails), once.run("a", fails), return_exceptions=True):
        assert isinstance(asked, Denied)
