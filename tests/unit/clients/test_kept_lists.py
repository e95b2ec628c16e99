"""Many labels cost a registry one question for each of its lists, and none is answered by a list older than it may be."""

from __future__ import annotations

import asyncio

import pytest

from lattice.clients.kept_lists import KeptLists
from lattice.errors import Retry


class Catalog:
    """A registry that counts."""

    def __init__(self) -> None:
        self.now, self.asked, self.failure = 0.0, 0, ""

    async def ask(self) -> list[str]:
        """The list, after a while."""
        self.asked += 1
        await asyncio.sleep(0)
        if self.failure:
            raise Retry(self.failure)
        return [f"list {self.asked}"]


async def test_who_asks_at_the_same_time_or_soon_after_shares_the_list() -> None:
    catalog = Catalog()
    lists = KeptLists(lambda: catalog.now)
    found = [one for one, _ in await asyncio.gather(*(lists.names(("r", ""), catalog.ask, -5.0) for _ in range(50)))]
    catalog.now = 4.0
    found.append((await lists.names(("r", ""), catalog.ask, -1.0))[0])
    assert (found, catalog.asked) == ([["list 1"]] * 51, 1)
    assert await lists.names(("r", "a"), catalog.ask, -1.0) == (["list 2"], 4.0)
    assert await lists.names(("other", ""), catalog.ask, -1.0) == (["list 3"], 4.0)


async def test_a_list_older_than_wanted_is_asked_for_again_once_for_all_who_want_that() -> None:
    catalog = Catalog()
    lists = KeptLists(lambda: catalog.now)
    await lists.names(("r", ""), catalog.ask, -5.0)
    catalog.now = 2.0
    assert await asyncio.gather(*(lists.names(("r", ""), catalog.ask, 2.0) for _ in range(50))) == [(["list 2"], 2.0)] * 50


async def test_a_failure_is_kept_by_nobody() -> None:
    catalog = Catalog()
    lists = KeptLists(lambda: catalog.now)
    catalog.failure = "away"
    with pytest.raises(Retry):
        await lists.names(("r", ""), catalog.ask, -5.0)
    catalog.failure = ""
    assert await lists.names(("r", ""), catalog.ask, -5.0) == (["list 2"], 0.0)
