"""Measures launches (`srun`) on four real nodes, by turns with a real Slurm of four nodes beside them where one is installed.

A batch script stands in an allocation and in a job of Slurm's, and both run the same launches when it is their turn.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from lattice.errors import Corrupt
from lattice.kube.resources import ALLOCATIONS
from lattice_dev import slurm
from lattice_dev.bench import hand_launch, image_files, launch_programs, work
from lattice_dev.bench.auditlog import Writes, count_writes, tell_difference, usual_writes, varying_writes
from lattice_dev.bench.drive import NAMESPACE, USER, Driver
from lattice_dev.bench.figures import Aim, Baseline, Figure, percentile
from lattice_dev.bench.footprint import resident_mib
from lattice_dev.bench.launch_marks import RanLaunch, first_instructions, growth, rate, read_many, until_ready
from lattice_dev.bench.launch_programs import LaunchPrograms
from lattice_dev.bench.observe import Watching
from lattice_dev.bench.standing_script import StandingScript
from lattice_dev.bench.writes import NOT_OF_A_LIFE
from lattice_dev.waiting import HostClock

NODES, RANKS, AT_ONCE = 4, 256, 8
ONE_AIM, INIT_AIM, FENCE_AIM, RATE_AIM = Aim(50.0), Aim(150.0), Aim(400.0), Aim(30.0, at_least=True)
LATENCY_AIM, MEMORY_AIM, DESCRIPTORS_AIM, WRITES_AIM = Aim(1.2), Aim(2.0), Aim(8.0), Aim(0.0)
"""Flat: the last fifth's latency by the first's; growth of an agent from the first fifth to the last, in MiB and in descriptors, of
which launches that run hold some."""
WALLTIME: Final = 3600
READY_SECONDS, TURN_SECONDS, MANY_SECONDS, LIFE_SECONDS = 60.0, 120.0, 1800.0, 120.0
ONES_A_TURN: Final = 10
OURS, THEIRS = "ours", "slurm"
ONE: Final = "for i in $(seq {count}); do ./mark begin srun -N 1 -n 1 ./mark first || exit; done"
INIT: Final = f"./mark begin srun -N {NODES} -n {NODES} ./initialize"
FENCE: Final = f"./mark begin srun -N {NODES} -n {RANKS} -O ./fence"
MANY: Final = f"./mark many {{count}} {AT_ONCE} srun --overlap -N 1 -n 1 ./mark nothing"
LAUNCHES_OF_A_LIFE: Final = 4
WRITTEN_BY_TIME: Final = frozenset({"usagerecords"})
"""Resources that are written now and then for all attempts that have ended since, so that a longer life has more of them."""


@dataclass(frozen=True)
class LaunchSize:
    """The size of a measurement: launches of one rank, of MPI and of a fence, many at once (and so many by Slurm), and lives."""

    ones: int
    inits: int
    fences: int
    many: int
    many_beside: int
    lives: int


@dataclass
class Footprint:
    """The memory and the descriptors of an agent and its runner, noted while launches run: launches so far, MiB of both, descriptors."""

    pids: Sequence[int]
    seen: list[tuple[int, float, int]] = field(default_factory=list)

    def look(self, part: Path) -> None:
        """Notes what they hold now, and how many launches the file has."""
        count = part.read_bytes().count(b"\n") if part.exists() else 0
        if not self.seen or count > self.seen[-1][0] + 10:
            memory = sum(resident_mib(pid) for pid in self.pids)
            self.seen.append((count, memory, sum(1 for _ in Path(f"/proc/{self.pids[0]}/fd").iterdir())))

    def grown(self, count: int) -> tuple[float, float]:
        """Returns by how many MiB and descriptors the median of the last fifth of `count` launches is above that of the first."""
        first = [row for row in self.seen if count * 0.02 < row[0] <= count * 0.2] or self.seen[:1]
        last = [row for row in self.seen if row[0] > count * 0.8] or self.seen[-1:]
        return (
            percentile((row[1] for row in last), 0.5) - percentile((row[1] for row in first), 0.5),
            percentile((row[2] for row in last), 0.5) - percentile((row[2] for row in first), 0.5),
        )


async def measure(at: Driver, size: LaunchSize) -> list[Figure]:
    """Returns all figures. Raises Rejected where a program that they need is not installed, or this is not root."""
    with image_files.folder() as place:
        programs = await asyncio.to_thread(launch_programs.compiled, place)
        async with at.watch(ledger=True) as seen:
            async with _standing(at, seen, programs) as ours, _standing_beside(programs) as theirs:
                by_name = {OURS: ours} | ({THEIRS: theirs} if theirs is not None else {})
                found = await asyncio.to_thread(_by_turns, at, by_name, programs, size)
            found += [await _writes(at, seen, count=size.lives)]
            await at.clear(seen)
    return found


# who stands


@asynccontextmanager
async def _standing(at: Driver, seen: Watching, programs: LaunchPrograms) -> AsyncIterator[StandingScript]:
    """Yields a script that stands in an allocation of all nodes, which ends with the block."""
    folder, name = at.instance.where.user_home(USER) / "bench-launches", "launches-stand"
    shutil.rmtree(folder, ignore_errors=True)
    uid = at.instance.user(USER).uid
    programs.install(folder, uid)
    script = StandingScript(folder, uid)
    seen.expect(name)
    await at.user.create(ALLOCATIONS, _with_script(name, script.text), NAMESPACE)
    try:
        await asyncio.to_thread(script.await_ready, within=READY_SECONDS)
        yield script
        await asyncio.to_thread(script.finish_script)
        await seen.end_of(name, within=LIFE_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_script(name: str, script: str) -> dict[str, Any]:
    """Returns an allocation of all nodes whose script runs on the first of them."""
    made = work.real(NAMESPACE, name, "true", nodes=NODES, walltime=WALLTIME)
    del made["spec"]["entrypoint"]
    made["spec"]["script"] = script
    return made


@asynccontextmanager
async def _standing_beside(programs: LaunchPrograms) -> AsyncIterator[StandingScript | None]:
    """Yields a script that stands in a job of a Slurm that runs for the block; None: none is installed."""
    if slurm.missing():
        yield None
        return
    with ExitStack() as stack:
        script = await asyncio.to_thread(stack.enter_context, _slurm_job(programs))
        try:
            yield script
        finally:
            await asyncio.to_thread(stack.close)


@contextmanager
def _slurm_job(programs: LaunchPrograms) -> Iterator[StandingScript]:
    """Yields a script that stands in a job of all nodes of a Slurm that runs for the block."""
    with slurm.running(HostClock(), nodes=NODES) as cluster:
        folder = cluster.directory / "bench"
        programs.install(folder, 0)
        script = StandingScript(folder, 0)
        cluster.submit(folder / "stand.sh", f"--nodes={NODES}", "--output=stand.out")
        script.await_ready(within=READY_SECONDS)
        yield script
        script.finish_script()


# turns


def _by_turns(at: Driver, standing: Mapping[str, StandingScript], programs: LaunchPrograms, size: LaunchSize) -> list[Figure]:
    """Returns the figures of launches, each kind by turns of all who stand."""
    return [
        *_ones(standing, size.ones),
        _inits(at, standing, programs, size.inits),
        _fences(standing, size.fences),
        *_many(at, standing, size),
    ]


def _turns(standing: Mapping[str, StandingScript], kind: str, script: str, count: int) -> dict[str, list[str]]:
    """Returns what a script says, run so often by each who stands, by turns."""
    said: dict[str, list[str]] = {name: [] for name in standing}
    for number in range(count):
        for name, stands in standing.items():
            said[name].append(stands.run(f"{kind}-{number}", script, within=TURN_SECONDS))
    return said


def _ones(standing: Mapping[str, StandingScript], count: int) -> list[Figure]:
    """Returns the figures of how long one rank takes from the exec of its `srun` to its first instruction."""
    said = _turns(standing, "one", ONE.format(count=ONES_A_TURN), max(1, count // ONES_A_TURN))
    took = {name: [1000 * one for text in texts for one in first_instructions(text)] for name, texts in said.items()}
    found = []
    for share, aim in ((0.5, ONE_AIM), (0.99, None)):
        beside = _beside(f"p{share * 100:.0f}", {name: percentile(each, share) for name, each in took.items()})
        name = f"exec of srun to the first instruction of its rank, p{share * 100:.0f}"
        found.append(Figure(name, percentile(took[OURS], share), "ms", aim, beside, f"{len(took[OURS])} of each, {ONES_A_TURN} a turn"))
    return found


def _inits(at: Driver, standing: Mapping[str, StandingScript], programs: LaunchPrograms, count: int) -> Figure:
    """Returns the figure of how much later four ranks on four nodes are through MPI_Init than by hand."""
    said: dict[str, list[str]] = {name: [] for name in standing}
    prefixes = [["nsenter", f"--net=/proc/{at.instance.pid(f'agent-{node}')}/ns/net"] for node in at.instance.site().nodes[:NODES]]
    own = []
    for number in range(count):
        for name, stands in standing.items():
            said[name].append(stands.run(f"init-{number}", INIT, within=TURN_SECONDS))
        by_hand = hand_launch.run(programs.place / "initialize", [[rank] for rank in range(NODES)], prefixes)
        own.append(1000 * until_ready(by_hand, NODES)[1])
    whole = {name: percentile((1000 * until_ready(text, NODES)[0] for text in texts), 0.5) for name, texts in said.items()}
    hand = percentile(own, 0.5)
    beside = _beside("", {name: each - hand for name, each in whole.items()})
    parts = {"whole": whole[OURS], "by hand, from the first rank's begin": hand}
    return Figure("4 ranks on 4 nodes through MPI_Init, over the program's own time", whole[OURS] - hand, "ms", INIT_AIM, beside,
                  f"p50 of {count} of each by turns", parts)  # fmt: skip


def _fences(standing: Mapping[str, StandingScript], count: int) -> Figure:
    """Returns the figure of how long 256 ranks of libpmi2 on four nodes take from the exec of `srun` until all are through a fence."""
    said = _turns(standing, "fence", FENCE, count)
    took = {name: [until_ready(text, RANKS) for text in texts] for name, texts in said.items()}
    whole = {name: percentile((1000 * each[0] for each in rows), 0.5) for name, rows in took.items()}
    parts = {"from the first rank's begin": percentile((1000 * each[1] for each in took[OURS]), 0.5)}
    detail = f"p50 of {count} of each by turns"
    return Figure(f"{RANKS} ranks of libpmi2 on 4 nodes through a fence", whole[OURS], "ms", FENCE_AIM, _beside("", whole), detail, parts)


def _many(at: Driver, standing: Mapping[str, StandingScript], size: LaunchSize) -> list[Figure]:
    """Returns the figures of many launches from one script: how many a second, and what grows with them."""
    agent = at.instance.pid(f"agent-{at.instance.site().nodes[0]}")
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text(encoding="ascii").split()
    held = Footprint([agent, *map(int, children)])
    ran = _launched(standing[OURS], size.many, held.look)
    beside = _beside("", {OURS: 0.0, THEIRS: rate(_launched(standing[THEIRS], size.many_beside))}) if THEIRS in standing else None
    first, last = growth(ran)
    memory, descriptors = held.grown(size.many)
    detail = f"{size.many} of ours, {size.many_beside} of Slurm's"
    return [
        Figure(f"one-task launches from one script, {AT_ONCE} at once", rate(ran), "/s", RATE_AIM, beside, detail),
        Figure("the same, latency of the last fifth by that of the first", last / first, "×", LATENCY_AIM,
               parts={"ms of the first": 1000 * first, "ms of the last": 1000 * last}),
        Figure("the same, growth of the agent's memory", memory, "MiB", MEMORY_AIM, detail="with its runner, first fifth to last",
               parts={"MiB at the end": held.seen[-1][1]}),
        Figure("the same, growth of the agent's descriptors", descriptors, "descriptors", DESCRIPTORS_AIM,
               parts={"at the end": held.seen[-1][2]}),
    ]  # fmt: skip


def _launched(stands: StandingScript, count: int, meanwhile: Callable[[Path], None] | None = None) -> list[RanLaunch]:
    """Returns so many launches from one script; raises Corrupt where one of them has failed."""
    ran = read_many(stands.run("many", MANY.format(count=count), within=MANY_SECONDS, meanwhile=meanwhile))
    if failed := sum(1 for each in ran if each.status):
        raise Corrupt(f"{failed} of {count} launches have failed", reason="LaunchFailed")
    return ran


def _beside(what: str, values: Mapping[str, float]) -> Baseline | None:
    """Returns Slurm's value as a baseline; None: there is none."""
    return Baseline(f"of Slurm 22.05 {what}".rstrip(), values[THEIRS]) if THEIRS in values else None


# writes


async def _writes(at: Driver, seen: Watching, *, count: int) -> Figure:
    """Returns how many more API writes a life on four nodes makes that launches, than one that does not, of so many of each by turns."""
    with_launches = f"for i in $(seq {LAUNCHES_OF_A_LIFE}); do srun -N {NODES} -n {NODES} true || exit; done"
    plain, launched = list[Writes](), list[Writes]()
    for number in range(count):
        plain.append(await _life(at, seen, f"launches-plain-{number:03d}", "sleep 1"))
        launched.append(await _life(at, seen, f"launches-launched-{number:03d}", with_launches))
    without, with_ = usual_writes(plain), usual_writes(launched)
    detail = f"{LAUNCHES_OF_A_LIFE} launches on 4 nodes a life, {count} lives of each by turns; {tell_difference(without, with_)}"
    if varied := varying_writes([*plain, *launched]):
        detail += f"; not in every life: {', '.join(varied)}"
    parts = {"without": float(without.total()), "with": float(with_.total())}
    more = with_.total() - without.total()
    return Figure("API writes more of a life on 4 nodes with launches", more, "writes", WRITES_AIM, detail=detail, parts=parts)


async def _life(at: Driver, seen: Watching, name: str, script: str) -> Writes:
    """Returns the writes of one life, to its last release, from the audit log; raises Corrupt where it has failed."""
    log = at.instance.where.audit_log
    offset = log.stat().st_size
    seen.expect(name)
    await at.user.create(ALLOCATIONS, _with_script(name, f"#!/bin/bash\n{script}\n"), NAMESPACE)
    life = await seen.end_of(name, within=LIFE_SECONDS)
    if life.last.status.phase != "Completed":
        raise Corrupt(f"{name} has ended as {life.last.status.phase}", reason="LaunchFailed")
    await seen.until(partial(_are_free, seen), within=LIFE_SECONDS, what=f"the release of {name}")
    await at.clock.sleep(1.0)  # the plans follow the last release
    with log.open("rb") as file:
        file.seek(offset)
        return count_writes(file, leave_out=NOT_OF_A_LIFE | WRITTEN_BY_TIME)


def _are_free(seen: Watching) -> bool:
    """Tells whether all rows that were added to the ledger are removed."""
    return not sum(len(step.claimed) - len(step.released) for step in seen.steps)
