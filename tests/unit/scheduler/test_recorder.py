"""Recording: what cycles decided is on disk and decides again; it is capped, private, and never in the way of a cycle."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from lattice.cycle_files import CycleFolder, CycleWriter
from lattice.daemon.clock import ManualClock
from lattice.errors import Corrupt, NotFound, Rejected
from lattice.kube.lasting import LastKnown
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.outcomes import Outcome
from lattice.scheduling.recording.cycle_log import CHANGES, OPENING, WHOLE, frame, scan
from lattice.scheduling.recording.reproduction import again, turns
from lattice.views.cluster import Config, ConfigSpec, RecordingOptions, SchedulingOptions
from lattice.views.meta import Metadata
from lattice_controllers.scheduler import recorder as module
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.recorder import Recorder
from tests.unit.scheduler.doubles import known
from tests.unit.scheduling.recording.test_record import VCLUSTERS, Site

ON = RecordingOptions(enabled=True)


@dataclass
class Recording:
    """A site whose cycles are recorded."""

    site: Site
    recorder: Recorder
    metrics: SchedulerMetrics
    clock: ManualClock
    folder: Path
    config: LastKnown[Config]
    cycles: int = 0

    def cycle(self, vclusters: tuple[str, ...] = VCLUSTERS) -> list[list[Outcome]]:
        """One cycle of these vclusters, as the loop does it."""
        self.cycles += 1
        self.site.happen()
        found = []
        for name in vclusters:
            queue = list(self.site.queues[name].values())
            remember = self.recorder.begin_turn(name, queue, self.site.now, self.cycles)
            outcomes = list(decide(self.site.state, name, queue, self.site.now))
            remember(outcomes)
            found.append(outcomes)
        return found

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait for the thread that writes."""
        async with asyncio.timeout(60):
            while not done():  # noqa: ASYNC110 - a thread is waited for, no task
                await asyncio.sleep(0.005)

    def counted(self, result: str) -> float:
        """Cycles with this end."""
        return self.metrics.registry.get_sample_value("lattice_scheduler_recorded_cycles_total", {"result": result}) or 0.0

    @property
    def active(self) -> float | None:
        """The gauge."""
        return self.metrics.registry.get_sample_value("lattice_scheduler_recording")


def configured(options: RecordingOptions) -> Config:
    """A LatticeConfig with these options."""
    return Config(metadata=Metadata(name="lattice"), spec=ConfigSpec(scheduling=SchedulingOptions(recording=options)))


@asynccontextmanager
async def recording(folder: Path, seed: int = 1, options: RecordingOptions = ON) -> AsyncIterator[Recording]:
    site, metrics, clock = Site(seed), SchedulerMetrics(), ManualClock()
    kept = known(configured(options))
    made = Recording(site, Recorder(clock, site.state, metrics, folder, config=kept), metrics, clock, folder, kept)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(made.recorder.run())
        await made.until(lambda: made.recorder._before is not None)
        try:
            yield made
        finally:
            running.cancel()


async def test_each_cycle_is_read_back_with_all_its_vclusters_and_decides_again(tmp_path: Path) -> None:
    async with recording(tmp_path / "cycles") as here:
        decided = {}
        for _ in range(12):
            outcomes = here.cycle()
            if any(outcomes):
                decided[here.cycles] = [one for one in outcomes if one]
        await here.until(lambda: here.counted("written") == len(decided))
        for cycle, outcomes in decided.items():
            found = turns((await here.recorder.cycle(cycle)).log, cycle)
            assert [list(turn.outcomes) for turn in found] == outcomes
            assert all(again(turn).differences == () for turn in found)
        assert turns((await here.recorder.cycle(0)).log)[0].moment.cycle == max(decided)
        kept = sum(file.stat().st_size for file in here.folder.iterdir())
        assert here.metrics.registry.get_sample_value("lattice_scheduler_recording_bytes") == kept


def _one_is_written(here: Recording) -> bool:
    return here.counted("written") == 1


async def test_numbers_go_on_in_the_next_term_and_in_another_file(tmp_path: Path) -> None:
    for expected in (1, 2, 3):
        async with recording(tmp_path) as here:
            here.site.queues = {name: {} for name in VCLUSTERS}
            while not any(here.cycle()):
                here.cycles = 0
            await here.until(partial(_one_is_written, here))
        assert CycleFolder(tmp_path).last() == expected
    assert len(CycleFolder(tmp_path).files()) == 3


async def test_what_is_recorded_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    async with recording(tmp_path / "cycles") as here:
        while not any(here.cycle()):
            pass
        await here.until(lambda: here.counted("written") == 1)
    folder = tmp_path / "cycles"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()] == [0o600]


async def test_nothing_is_looked_at_or_written_while_recording_is_off_and_the_answer_says_how_to_turn_it_on(tmp_path: Path) -> None:
    async with recording(tmp_path / "cycles", options=RecordingOptions()) as here:
        for _ in range(5):
            here.cycle()
        assert here.active == 0
        with pytest.raises(NotFound, match=r"recording is off: lattice admin config set scheduling.recording.enabled=true"):
            await here.recorder.cycles()
        here.config.object = configured(ON)
        while not any(here.cycle()):
            pass
        await here.until(lambda: here.counted("written") == 1)
        assert here.active == 1
        here.config.object = configured(RecordingOptions())
        here.cycle()
        assert here.active == 0


async def test_a_disk_that_takes_nothing_turns_recording_off_and_the_cycles_go_on(tmp_path: Path) -> None:
    blocked = tmp_path / "cycles"
    async with recording(blocked) as here:
        blocked.write_text("a file where the folder should be")
        while not any(here.cycle()):
            pass
        await here.until(lambda: here.counted("failed") == 1)
        assert here.active == 0
        here.cycle()
        assert here.counted("written") == 0
        blocked.unlink()
        here.clock.advance(module.AGAIN_SECONDS + 1)
        while not any(here.cycle()):
            pass
        await here.until(lambda: here.counted("written") == 1)
        assert here.active == 1


async def test_cycles_are_left_out_whole_and_counted_where_the_disk_does_not_keep_up(tmp_path: Path) -> None:
    async with recording(tmp_path) as here:
        decided = 0
        while len(here.recorder._waiting) < module.MOST_WAITING:
            here.cycle()  # no await: the thread has no turn in between
        while not here.counted("left_out"):
            here.cycle()
        decided = len({moment.cycle for moment, _ in here.recorder._waiting})
        await here.until(lambda: here.counted("written") == decided)
        while not any(here.cycle()):
            pass
        await here.until(lambda: here.counted("written") == decided + 1)
        stretches = (await here.recorder.cycles()).stretches
        found = turns((await here.recorder.cycle(stretches[-1].last)).log)
        assert all(again(turn).differences == () for turn in found)


def a_frame(kind: bytes, cycle: int, size: int = 1000, more: int = 0) -> bytes:
    return frame(kind, cycle, float(cycle), os.urandom(size), more)


def filled(folder: Path, cycles: int, *, most: int = 80_000, age: float = 800.0) -> CycleWriter:
    writer = CycleWriter(folder)
    for cycle in range(1, cycles + 1):
        new = writer.due(most, float(cycle), age)
        writer.write(a_frame(WHOLE if new else CHANGES, cycle), cycle, float(cycle), new=new, most=most)
    return writer


def test_the_folder_stays_below_its_size_and_loses_its_oldest_files_first(tmp_path: Path) -> None:
    for cycles in (10, 50, 200):
        filled(tmp_path / str(cycles), cycles).close()
        files = CycleFolder(tmp_path / str(cycles)).files()
        assert sum(file.stat().st_size for file in files) <= 80_000
        kept = CycleFolder(tmp_path / str(cycles)).cycles().stretches
        assert kept[-1].last == cycles
        assert [one.first for one in kept[1:]] == [one.last + 1 for one in kept[:-1]]
    with pytest.raises(NotFound, match=f"cycle 1 is not kept any more: the oldest that is kept is {kept[0].first}"):
        CycleFolder(tmp_path / "200").cycle(1)


def test_files_that_were_written_too_long_ago_go_and_the_open_one_stays(tmp_path: Path) -> None:
    writer = filled(tmp_path, 100, most=1_000_000, age=80.0)
    files = CycleFolder(tmp_path).files()
    assert len(files) >= 8
    for file in files:
        os.utime(file, (0, 0))
    writer.trim(1_000_000, 1_000.0, 80.0)
    assert CycleFolder(tmp_path).files() == files[-1:]
    writer.close()


def test_one_cycle_that_is_larger_than_all_that_is_allowed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="maxSize") as refused:
        CycleWriter(tmp_path).write(a_frame(WHOLE, 1, 5_000), 1, 1.0, new=True, most=4_000)
    assert refused.value.errno == errno.EFBIG


def test_a_file_that_the_system_lets_grow_no_further_keeps_only_whole_frames(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = CycleWriter(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        for cycle in range(1, 7):
            new = cycle == 1
            writer.write(a_frame(WHOLE if new else CHANGES, cycle, 150_000), cycle, 1.0, new=new, most=1 << 30)
        with pytest.raises(OSError, match="too large"):
            writer.write(a_frame(CHANGES, 7, 150_000), 7, 1.0, new=False, most=1 << 30)
        with pytest.raises(OSError, match="too large"):
            writer.write(a_frame(WHOLE, 20, 1_100_000), 20, 1.0, new=True, most=1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [(one.first, one.last, one.torn) for one in CycleFolder(tmp_path).cycles().stretches] == [(1, 6, 0)]
    assert CycleFolder(tmp_path).cycle().cycle == 6


def test_numbers_go_on_behind_a_file_that_holds_nothing_whole(tmp_path: Path) -> None:
    filled(tmp_path, 5).close()
    for content in (b"", OPENING[:5], OPENING, OPENING + a_frame(WHOLE, 6)[:-1]):
        (tmp_path / "cycles-000000000006.log").write_bytes(content)
        assert CycleFolder(tmp_path).last() == 5
        assert CycleFolder(tmp_path).cycle().cycle == 5
        with pytest.raises(NotFound, match="the log holds no cycle"):
            CycleFolder(tmp_path).cycle(6)


def test_what_a_killed_process_left_of_its_last_cycle_is_left_out_and_said(tmp_path: Path) -> None:
    filled(tmp_path, 5).close()
    file = CycleFolder(tmp_path).files()[-1]
    sound = file.read_bytes()
    for tail in (sound[-700:][:500], a_frame(CHANGES, 6)[:-1], a_frame(CHANGES, 6)[:7], a_frame(CHANGES, 6, more=1)):
        file.write_bytes(sound + tail)
        assert CycleFolder(tmp_path).last() == 5
        assert scan(file.read_bytes()).torn == len(tail)
        with pytest.raises(NotFound, match=f"holds 1 to 5; its last {len(tail)} bytes are a frame that was never finished"):
            CycleFolder(tmp_path).cycle(6)


def test_damage_is_said_and_nothing_behind_it_is_taken_for_whole(tmp_path: Path) -> None:
    filled(tmp_path, 5).close()
    file = CycleFolder(tmp_path).files()[-1]
    data = bytearray(file.read_bytes())
    third = scan(bytes(data)).frames[2]
    data[third.end - 10] ^= 1
    file.write_bytes(data)
    assert scan(CycleFolder(tmp_path).cycle(2).log).frames[-1].cycle == 2
    for cycle in (0, 3, 5):
        with pytest.raises(Corrupt, match="does not match its checksum"):
            CycleFolder(tmp_path).cycle(cycle)


def test_a_cycle_that_was_not_recorded_in_between_is_named_with_the_gap(tmp_path: Path) -> None:
    file = tmp_path / "cycles-000000000003.log"
    file.write_bytes(OPENING + a_frame(WHOLE, 3) + a_frame(CHANGES, 4) + a_frame(CHANGES, 9))
    assert [(one.first, one.last) for one in CycleFolder(tmp_path).cycles().stretches] == [(3, 4), (9, 9)]
    with pytest.raises(NotFound, match="cycle 6 was not recorded: 5 to 8 are missing"):
        CycleFolder(tmp_path).cycle(6)


@pytest.mark.parametrize("text", [OPENING.replace(b"1", b"2"), OPENING.replace(b"1", b"0")])
def test_another_format_is_refused_with_both_numbers(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "cycles-000000000001.log"
    file.write_bytes(text + a_frame(WHOLE, 1))
    with pytest.raises(Rejected, match=f"has format {text[:1].decode()}, and this program reads format 1"):
        CycleFolder(file).cycle()


@pytest.mark.parametrize("text", [b"hello", b"1 something else\n", b"\x00" * 100])
def test_what_is_no_cycle_log_is_refused(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "some.log"
    file.write_bytes(text)
    with pytest.raises(Rejected, match="this is no cycle log"):
        CycleFolder(file).cycle()
