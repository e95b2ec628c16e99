"""The recorder: keeps what cycles read and decided, in a cycle log on disk. Snapshots are taken on the loop, encoded in a thread.

Recording never stops a cycle: a cycle for which the disk is too slow is left out and counted; after a failed write, recording is off for
five minutes and the log says why.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final, TypeVar

from lattice import __version__
from lattice.cycle_files import CycleFolder, CycleWriter
from lattice.daemon.clock import Clock
from lattice.daemon.guard import Guard
from lattice.daemon.logs import event
from lattice.errors import Corrupt, LatticeError, NotFound, Rejected
from lattice.kube.lasting import LastKnown
from lattice.scheduling.conversion.policies import seconds
from lattice.scheduling.model.outcomes import Outcome
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.queries.answers import CycleLog, Cycles
from lattice.scheduling.recording.codec import CycleEncoder
from lattice.scheduling.recording.cycle_log import CHANGES, WHOLE, frame
from lattice.scheduling.recording.record import Snapshot, SnapshotTaker, completed
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import quantity_bytes
from lattice.views.cluster import Config, RecordingOptions
from lattice_controllers.scheduler.metrics import SchedulerMetrics

log = logging.getLogger(__name__)

WHOLE_EVERY: Final = 256
"""Turns between two whole snapshots; a reader of one turn decodes so many at most."""
MOST_WAITING: Final = 32
"""Turns that may wait to be written; while there are more, new cycles are left out."""
AGAIN_SECONDS: Final = 300.0
"""Time without recording after a failed write."""
TRIM_SECONDS: Final = 60.0
DEFAULT_SIZE, DEFAULT_AGE = 256 << 20, 7 * 86400.0

T = TypeVar("T")
Turns = Sequence[tuple[Snapshot, Sequence[Outcome]]]
Remember = Callable[[Sequence[Outcome]], None]


@dataclass(frozen=True, slots=True)
class Allowed:
    """The effect of the recording options: whether cycles are recorded, how many bytes of records are kept, and for how many seconds."""

    enabled: bool
    size: int
    age: float


class Recorder:
    """The recorder of one term, by the recording options of the LatticeConfig; it serves the recorded cycles to readers, too."""

    def __init__(
        self, clock: Clock, state: ClusterState, metrics: SchedulerMetrics, folder: Path, *,
        config: LastKnown[Config],
    ) -> None:  # fmt: skip
        self._clock = clock
        self._state = state
        self._looker = SnapshotTaker(state)
        self._metrics = metrics
        self._folder = folder
        self._config = config
        self._guard = Guard(clock, "recording of cycles")
        self._given: RecordingOptions | None = None
        self._allowed = Allowed(enabled=False, size=DEFAULT_SIZE, age=DEFAULT_AGE)
        self._before: int | None = None
        """The number of the last cycle that was recorded before this term; None: the folder has not been read yet."""
        self._skipped = 0
        self._failed_until = 0.0
        self._waiting: list[tuple[Snapshot, Sequence[Outcome]]] = []
        self._some = asyncio.Event()
        self._writing = _Writing(folder)

    def begin_turn(self, vcluster: str, candidates: Sequence[Candidate], now: float, cycle: int) -> Remember:
        """Takes a snapshot of what a vcluster's cycle is about to read; returns a function that records it with the outcomes.

        Where the turn is not recorded (no candidates, recording is off or has failed, the disk is behind, no snapshot could be taken),
        that function ignores them.
        """
        if self._before is None or not candidates or not self._follow().enabled or self._clock.monotonic() < self._failed_until:
            return _forget
        number = self._before + cycle
        if number == self._skipped or (len(self._waiting) >= MOST_WAITING and self._waiting[-1][0].cycle != number):
            if number != self._skipped:
                self._metrics.recorded.labels("left_out").inc()
            self._skipped = number
            return _forget
        found: list[Snapshot] = []
        if self._guard.waits("look") or self._guard.attempt(
            "look", lambda: found.append(self._looker.take_snapshot(vcluster, candidates, now, number))
        ):
            return _forget
        return lambda outcomes: self._remember(found[0], outcomes)

    async def run(self) -> None:
        """Writes recorded cycles to disk as they come, and removes old ones each minute, until cancelled; a failed write is logged."""
        try:
            self._before = await asyncio.to_thread(CycleFolder(self._folder).last)
        except LatticeError as error:
            self._fail(error.message)
            self._before = 0
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write())
                group.create_task(self._trim())
        finally:
            self._metrics.recording.set(0)
            self._writing.close()

    # -- questions ----------------------------------------------------------------------------------------------------

    async def cycles(self) -> Cycles:
        """Returns which cycles are recorded, oldest first; raises Rejected where the log on disk is damaged."""
        return await asyncio.to_thread(self._asked(CycleFolder(self._folder).cycles))

    async def cycle(self, number: int) -> CycleLog:
        """Returns the log of one cycle, 0: of the last one; raises NotFound, with a sentence on which cycles there are.

        Raises Rejected where the log on disk is damaged.
        """
        return await asyncio.to_thread(self._asked(lambda: CycleFolder(self._folder).cycle(number)))

    def _asked(self, ask: Callable[[], T]) -> Callable[[], T]:
        """Returns a function that asks the folder of records, with errors as readers need them: Rejected for a damaged log, and NotFound
        with a hint where recording is off.
        """

        def answered() -> T:
            """Returns what is asked; raises Rejected for Corrupt, since the log is at fault, and NotFound with a hint where recording is
            off.
            """
            try:
                return ask()
            except Corrupt as error:  # the log is, not this process
                raise Rejected(error.message, reason=error.reason) from error
            except NotFound as error:
                if self._allowed.enabled:
                    raise
                hint = "recording is off: lattice admin config set scheduling.recording.enabled=true"
                raise NotFound(f"{error.message}; {hint}", reason=error.reason) from error

        return answered

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _follow(self) -> Allowed:
        """Returns what the recording options allow now, the defaults for a size or age that does not parse; reads them again, and sets the
        metric, where they have changed.
        """
        options = options_of(self._config.object)
        if options is not self._given:
            self._given = options
            try:
                size = quantity_bytes(options.max_size)
            except Rejected:
                size = DEFAULT_SIZE
            self._allowed = Allowed(options.enabled, size, seconds(options.max_age, DEFAULT_AGE))
            self._metrics.recording.set(int(options.enabled))
        return self._allowed

    def _remember(self, moment: Snapshot, outcomes: Sequence[Outcome]) -> None:
        """Queues a turn, completed with the shares that its cost function read, to be written by `run`."""
        self._waiting.append((completed(moment, self._state), outcomes))
        self._some.set()

    async def _write(self) -> None:
        """Writes turns as they are recorded, until cancelled.

        The turns of a cycle have all come before this task runs, so that a cycle is written as a whole.
        """
        while True:
            await self._some.wait()
            self._some.clear()
            turns, self._waiting = self._waiting, []
            if self._clock.monotonic() < self._failed_until:
                self._metrics.recorded.labels("failed").inc(_cycles(turns))
                continue
            failure = await self._guard.attempt_async("write", partial(self._written, turns))
            if failure is not None:
                self._fail(failure.reason)
                self._metrics.recorded.labels("failed").inc(_cycles(turns))

    async def _written(self, turns: Turns) -> None:
        """Writes turns in a thread, and sets the metrics; where the disk fails (OSError), turns recording off for 5 minutes and counts the
        cycles as failed.
        """
        try:
            total = await asyncio.to_thread(self._writing.write, turns, self._allowed, self._clock.now())
        except OSError as error:
            self._fail(error.strerror or str(error))
            self._metrics.recorded.labels("failed").inc(_cycles(turns))
        else:
            self._metrics.recording.set(int(self._allowed.enabled))
            self._metrics.recording_bytes.set(total)
            self._metrics.recorded.labels("written").inc(_cycles(turns))

    async def _trim(self) -> None:
        """Removes records beyond the allowed size and age each minute, even while nothing is recorded; never returns."""
        while True:
            allowed = self._follow()
            try:
                left = await asyncio.to_thread(self._writing.trim, allowed, self._clock.now())
                self._metrics.recording_bytes.set(left)
            except OSError as error:
                event(log, "RecordingNotTrimmed", logging.WARNING, folder=str(self._folder), message=error.strerror or str(error))
            await self._clock.sleep(TRIM_SECONDS)

    def _fail(self, message: str) -> None:
        """Turns recording off for 5 minutes, and logs the reason."""
        self._failed_until = self._clock.monotonic() + AGAIN_SECONDS
        self._metrics.recording.set(0)
        event(log, "RecordingFailed", logging.WARNING, folder=str(self._folder), message=message, again_seconds=AGAIN_SECONDS)


class _Writing:
    """The files and the encoder of the recorder, used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._files = CycleWriter(folder)
        self._chronicler = CycleEncoder(__version__)
        self._since = 0
        """Turns since the last whole snapshot."""
        self._turn = threading.Lock()

    def write(self, turns: Turns, allowed: Allowed, now: float) -> int:
        """Appends these turns to the cycle log; returns the size of all records then, in bytes. Raises OSError where the disk fails."""
        total = 0
        with self._turn:
            try:
                for number, cycle in groupby(turns, key=lambda turn: turn[0].cycle):
                    new = self._files.due(allowed.size, now, allowed.age)
                    frames = self._frames(list(cycle), whole=new or self._since >= WHOLE_EVERY)
                    total = self._files.write(frames, number, now, new=new, most=allowed.size)
            except BaseException:
                self._files.close()  # the chronicler is ahead of the file: the next one begins anew
                raise
        return total

    def trim(self, allowed: Allowed, now: float) -> int:
        """Removes records beyond the allowed size and age; returns the bytes that are left. Raises OSError where the disk fails."""
        with self._turn:
            return self._files.trim(allowed.size, now, allowed.age)

    def close(self) -> None:
        """Closes the open file of the cycle log."""
        with self._turn:
            self._files.close()

    def _frames(self, turns: Turns, *, whole: bool) -> bytes:
        """Returns the turns of one cycle as frames of the log; `whole`: the first as a whole snapshot, all others as changes."""
        written = []
        for place, (moment, outcomes) in enumerate(turns, start=1):
            first = whole and place == 1
            payload = self._chronicler.payload(moment, outcomes, whole=first)
            written.append(frame(WHOLE if first else CHANGES, moment.cycle, moment.now, payload, len(turns) - place))
            self._since = 0 if first else self._since + 1
        return b"".join(written)


def _cycles(turns: Turns) -> int:
    """Returns how many cycles, by their numbers, these turns belong to: the turns of all vclusters in one round, and that of `RANGES`,
    count as one.
    """
    return len({moment.cycle for moment, _ in turns})


def options_of(config: Config | None) -> RecordingOptions:
    """Returns the recording options of the LatticeConfig; off where there is none."""
    return config.spec.scheduling.recording if config is not None else _OFF


_OFF: Final = RecordingOptions()


def _forget(outcomes: Sequence[Outcome]) -> None:
    """Ignores the outcomes of a turn that is not recorded."""
    del outcomes
