"""Reads, beside a verdict on the order of jobs, what the scheduler itself recorded of the cycle that is blamed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import ceil, inf
from pathlib import Path

from lattice.cycle_files import CycleFolder
from lattice.errors import LatticeError
from lattice.scheduling.model.outcomes import Placed, Waiting
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.recording.codec import Turn
from lattice.scheduling.recording.reproduction import turns
from lattice_dev.trace.order import Outlook, PassedOver


class RecordedCycles:
    """The cycle log of a trace, by the names of allocations: which turn placed one, and what it had promised to others then."""

    def __init__(self, folder: Path) -> None:
        self._folder = CycleFolder(folder)
        self._turn_that_placed = cache(self._find_turn)

    def bound(self, one: PassedOver) -> bool:
        """Tells whether the job did not fit beside what others had been promised when the later one was placed; a promise binds everybody.

        Counted here from the recorded nodes, their ends and the promises alone. False: it fitted, or the cycle is not recorded.
        """
        turn = self._turn_that_placed(one.by)
        job = None if turn is None else next((each for each in turn.moment.candidates if _name(each) == one.job), None)
        if turn is None or job is None or job.walltime is None:
            return False
        return _outlook(turn, job).free(turn.moment.now, turn.moment.allowance + job.walltime + job.grace) < job.minimum

    def evidence(self, one: PassedOver) -> Iterator[str]:
        """Yields lines on the turn that placed the later job: what it read, what it had promised, and its outcomes in their order."""
        turn = self._turn_that_placed(one.by)
        if turn is None:
            yield f"  no recorded cycle placed {one.by}"
            return
        read, now = turn.moment, turn.moment.now
        yield f"  cycle {read.cycle} at {now:.3f} read {len(read.nodes)} nodes, {len(read.nodes) - len(read.taken)} of them held by nobody"
        names = {each.uid: _name(each) for each in read.candidates}
        for uid, promise in read.backfill_reservations.get(read.vcluster, {}).items():
            given = f"{now - promise.given:.3f} s ago"
            yield f"  {names.get(uid, uid)} was promised, {given}, {promise.nodes} nodes in {promise.start - now:.3f} s"
        for holder in sorted(read.holders.values(), key=lambda holder: holder.end or inf):
            yield f"  {len(holder.nodes)} nodes are held until {'?' if holder.end is None else f'{holder.end - now:+.3f} s'}"
        for place, outcome in enumerate(turn.outcomes, start=1):
            match outcome:
                case Placed():
                    yield f"  {place}. {_name(outcome.candidate)} was placed on {len(outcome.nodes)} nodes"
                case Waiting():
                    yield f"  {place}. {_name(outcome.candidate)} waits, {outcome.reason}: {outcome.message}"

    def _find_turn(self, name: str) -> Turn | None:
        """Returns the last recorded turn that placed the allocation of this name; None where there is none, or the log cannot be read."""
        try:
            for stretch in reversed(self._folder.cycles().stretches):
                for number in range(stretch.last, stretch.first - 1, -1):
                    for turn in turns(self._folder.cycle(number).log):
                        if any(isinstance(one, Placed) and _name(one.candidate) == name for one in turn.outcomes):
                            return turn
        except LatticeError:
            return None
        return None


def _name(candidate: Candidate) -> str:
    """Returns the name of a candidate's allocation."""
    return candidate.key.rpartition("/")[2]


def _outlook(turn: Turn, job: Candidate) -> Outlook:
    """Returns the hollow nodes that are free from the turn's time on beside what was promised to others, as it stood when `job` was judged.

    Nodes past their end count as held for the overrun that the scheduler allows, ends as whole seconds, as it plans.
    """
    read, now = turn.moment, turn.moment.now
    changes: list[tuple[float, int]] = []
    for index in (facts.index for facts in read.nodes.values() if facts.hollow and facts.usable):
        end = read.taken.get(index, now)
        if end != inf:
            changes.append((now if index not in read.taken else float(ceil(end)) if end > now else now + read.overrun, 1))
    promised = dict(read.backfill_reservations.get(read.vcluster, {}))
    promised.pop(job.uid, None)
    for outcome in turn.outcomes:
        if outcome.candidate.uid == job.uid:
            break
        if isinstance(outcome, Placed):
            promised.pop(outcome.candidate.uid, None)
            changes += [(now, -len(outcome.nodes)), (now + read.allowance + (outcome.candidate.walltime or inf), len(outcome.nodes))]
    for promise in promised.values():
        changes += [(max(now, promise.start), -promise.nodes), (promise.end, promise.nodes)]
    return Outlook(now, changes)
