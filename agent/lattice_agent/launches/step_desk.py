"""Answers people about the launches of attempts that this node heads: rows of the step log with those that run, totals, cancelling."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from lattice.daemon.clock import Clock
from lattice.errors import NotFound
from lattice.launches.answers import CANCELLED
from lattice.views.allocation import LaunchTotals
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.launches import step_log
from lattice_agent.launches.launch_end import exit_code
from lattice_agent.launches.launch_rows import row_of
from lattice_agent.launches.record import OVER, KeeperReport, LaunchRecord, RecordStore
from lattice_agent.launches.step_log import StepLog
from lattice_agent.peers.interface import EndedLaunch, FoundLaunches
from lattice_agent.standalone.keeper_link import end_name

if TYPE_CHECKING:
    from lattice_agent.launches.head import AttemptLaunches

TOTALS_KEPT: Final = 64
"""Attempts that ended before this agent began and whose totals are kept in memory."""
MOST_ROWS: Final = 10_000
"""Most rows of one answer."""


class StepDesk:
    """Answers about the launches of this node's attempts (peers.interface.LaunchBook)."""

    def __init__(
        self,
        node: str,
        find_head: Callable[[Key], AttemptLaunches | None],
        directory: Callable[[Key], Path],
        run_directory: Callable[[Key], Path],
        is_over: Callable[[Key], bool],
        read_work: Callable[[Key], NodeWork | None],
        clock: Clock,
    ) -> None:
        """Asks `find_head` for launches that this agent follows, and for others the attempt's directories, on disk and in memory."""
        self.node = node
        self._find_head, self._directory, self._run_directory = find_head, directory, run_directory
        self._is_over, self._read_work, self._clock = is_over, read_work, clock
        self._ended: OrderedDict[Key, LaunchTotals | None] = OrderedDict()
        self._concluding = threading.Lock()

    async def read_launches(self, key: Key, limit: int, number: int | None) -> FoundLaunches:
        """Returns the newest `limit` launches of an attempt, those that run among them; with `number` this one alone.

        Raises NotFound where this node has nothing of the attempt, Corrupt for a log of another format.
        """
        directory, most = self._directory(key), min(max(limit, 1), MOST_ROWS)
        if not await asyncio.to_thread(directory.is_dir):
            raise NotFound(f"this node has nothing of attempt {key.attempt} of {key.uid}: it is kept for seven days")
        totals = None
        if (head := self._find_head(key)) is None and self._is_over(key):
            totals = await asyncio.to_thread(self._concluded, key)  # before the rows are read: it writes those that are missing
        found = await asyncio.to_thread(step_log.read_rows, directory, most, number)
        running = head.running_rows() if head is not None else []
        rows = {row.number: row for row in [*running, *found.rows] if number is None or row.number == number}
        listed = [rows[each] for each in sorted(rows)]
        beyond = max(0, len(listed) - most)
        if head is not None:
            totals = head.launch_totals() if self._is_over(key) else head.present_totals()
        elif totals is None:  # it runs, and nobody has launched anything since this agent began
            totals = LaunchTotals(total=found.counted)
        return FoundLaunches(listed[beyond:], found.dropped, found.left_out + beyond, found.deleted, totals or LaunchTotals())

    async def end_launch(self, key: Key, number: int, why: str) -> EndedLaunch:
        """Ends a launch of an attempt: TERM, grace, KILL; tells how it has ended where it is over.

        Raises NotFound where there is no such launch.
        """
        head = self._find_head(key)
        if head is not None and head.end_launch(number, why):
            return EndedLaunch(ending=True, grace_seconds=head.work.grace_seconds)
        found = await self.read_launches(key, 1, number)
        if found.rows:
            return EndedLaunch(ending=False, row=found.rows[-1])
        begun = head.begun if head is not None else found.totals.total
        if number < begun:
            raise NotFound(f"launch {number} is over, and its row is not kept any more")
        last = f"the last one is {begun - 1}" if begun else "there was none yet"
        raise NotFound(f"there is no launch {number} in attempt {key.attempt}: {last}")

    def launch_totals(self, key: Key) -> LaunchTotals | None:
        """Returns how many launches an attempt that ends had, by result; None: none, or this node does not head it.

        Reads the disk where the attempt has ended before this agent began, once.
        """
        if (head := self._find_head(key)) is not None:
            return head.launch_totals()
        return self._concluded(key)

    def _concluded(self, key: Key) -> LaunchTotals | None:
        """Returns the totals of an attempt that is over and that nobody follows here; callers in several threads conclude it once."""
        with self._concluding:
            if key not in self._ended:
                self._ended[key] = self._read_totals(key)
                while len(self._ended) > TOTALS_KEPT:
                    self._ended.popitem(last=False)
            return self._ended[key]

    def _read_totals(self, key: Key) -> LaunchTotals | None:
        """Returns the totals of an attempt that this agent does not follow; writes the rows of launches that ended with it unheard."""
        directory, store = self._directory(key), RecordStore(self._run_directory(key))
        records = store.read_all()
        if not records and not step_log.has_log(directory):
            return None
        work = self._read_work(key)
        steps = StepLog(directory, work.number if work is not None else 0)
        for record in records:
            if record.state != OVER:
                self._conclude(key, record)
            steps.append(row_of(record, record.ended), record.ended)
            store.drop_record(record.number)
        steps.close()
        found = steps.totals()
        return found if found.total else None

    def _conclude(self, key: Key, record: LaunchRecord) -> None:
        """Notes in a record that its launch has ended with its attempt, with what its keeper on this node wrote that nobody heard."""
        for place, places in enumerate(record.nodes):
            if place not in record.done:
                record.done[place] = self._unheard(key, record.number) if places.name == self.node else None
        record.state, record.ended = OVER, self._clock.now()
        record.code = exit_code(record)
        if record.code and not record.result:
            record.result, record.why = CANCELLED, "its allocation has ended while the agent of its head was away"

    def _unheard(self, key: Key, number: int) -> dict[str, object] | None:
        """Returns what a keeper on this node wrote at its end; None: nothing that reads."""
        with suppress(OSError, msgspec.MsgspecError):
            report = msgspec.json.decode((self._run_directory(key) / end_name(number)).read_bytes(), type=KeeperReport)
            done: dict[str, object] = msgspec.to_builtins(report)
            return done
        return None
