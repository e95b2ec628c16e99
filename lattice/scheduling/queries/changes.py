"""Finds the smallest changes of a request with which it would start now; the planner itself confirms each before it is named.

Each question is one production cycle of the vcluster, with the changed candidate in the place of the old one, stopped at its
outcome and undone: nothing remains in the cluster state between two questions. Fewer nodes and shorter walltimes, in whole minutes,
are sought by bisection: a request that starts with some starts with less. (With topology Tight, less may have to stand in fewer
groups: the search tries the sizes of so many groups first, then of fewer.) While seeking, only pending work with a reservation is
planned beside it, for other waiting work did not fit; a change that is found is then planned among the whole queue. At most
`MOST_QUESTIONS` are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import Final

from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.outcomes import Placed
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import REQUIRED, TIGHT, Candidate
from lattice.scheduling.priority.cost import reach
from lattice.scheduling.queries.answers import Change
from lattice.scheduling.queries.what_if import undone
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import format_duration

MOST_QUESTIONS: Final = 96
MOST_TYPES = MOST_VCLUSTERS = 8
"""Most other GPU types and vclusters that are tried."""
MOST_SPANS: Final = 16
"""Most numbers of groups that are tried for fewer nodes with topology Tight."""
_MINUTE: Final = 60
_LONGEST: Final = 30 * 86400
"""The longest walltime that is tried, seconds."""

Queues = Mapping[str, Sequence[Candidate]]


def changes(
    state: ClusterState,
    candidate: Candidate,
    now: float,
    gpu_types: Collection[str] = (),
    vclusters: Collection[str] = (),
    queues: Queues | None = None,
) -> tuple[Change, ...]:
    """Returns the changes of a candidate's request with which it would start now, all at once; `search` has the parameters.

    Empty: none was found, it starts unchanged, or it waits for something else than nodes and limits.
    """
    return tuple(change for change in search(state, candidate, now, gpu_types, vclusters, queues) if change is not None)


def search(
    state: ClusterState,
    candidate: Candidate,
    now: float,
    gpu_types: Collection[str] = (),
    vclusters: Collection[str] = (),
    queues: Queues | None = None,
) -> Iterator[Change | None]:
    """Yields the changes of a candidate's request with which it would start now, and None after each question without result.

    None lets the caller do other work in between. `gpu_types` and `vclusters`: those to try instead, which the caller knows the
    reader may use. `queues`: the pending work of each vcluster that the candidate competes with. Nothing is found for work that
    starts unchanged, or that waits for something else than nodes and limits.
    """
    if candidate.held or candidate.blocked is not None or max(candidate.not_before, candidate.back_off_until) > now:
        return
    ask = _Questions(state, queues or {}, now)
    yield None
    if ask.surely(candidate):
        return
    yield from _nodes(candidate, ask, _ranges(state, candidate))
    yield from _walltime(candidate, ask)
    for other in _others(gpu_types, candidate.need.gpu_type)[:MOST_TYPES] if candidate.need.gpus else ():
        fits = ask.surely(replace(candidate, need=replace(candidate.need, gpu_type=other)))
        yield Change(kind="GpuType", value=other, text=f"GPU type {other}{_instead(candidate.need.gpu_type)}") if fits else None
    for other in sorted(set(vclusters) - {candidate.vcluster})[:MOST_VCLUSTERS]:
        fits = ask.surely(replace(candidate, vcluster=other, vcluster_open=True, vcluster_known=True))
        yield Change(kind="VCluster", value=other, text=f'vCluster "{other}" instead of "{candidate.vcluster}"') if fits else None


class _Questions:
    """Asks the planner whether a changed candidate would start now; answers False once `MOST_QUESTIONS` were asked."""

    def __init__(self, state: ClusterState, queues: Queues, now: float) -> None:
        self._state = state
        self._queues = queues
        self._now = now
        self._left = MOST_QUESTIONS

    def surely(self, candidate: Candidate) -> bool:
        """Tells whether the candidate would be placed now among the whole queue; asks the quick question first.

        False, too, once no question is left.
        """
        return self.beside_reservations(candidate) and self.among_all(candidate)

    def beside_reservations(self, candidate: Candidate) -> bool:
        """Tells whether the candidate would be placed now beside only the work that holds reservations; in strict order of submission,
        among the whole queue.

        This is quick, and True for every candidate that would be placed among the whole queue, as long as questions are left; then False.
        """
        if strategy_of(self._state.policy(candidate.vcluster)).strict:
            return self.among_all(candidate)
        holding = self._state.backfill_reservations.get(candidate.vcluster, {})
        return self._ask(candidate, [one for one in self._queues.get(candidate.vcluster, ()) if one.uid in holding])

    def among_all(self, candidate: Candidate) -> bool:
        """Tells whether the candidate would be placed now among the whole queue, without the quick question before; False, too, once no
        question is left.
        """
        return self._ask(candidate, self._queues.get(candidate.vcluster, ()))

    def _ask(self, candidate: Candidate, queue: Sequence[Candidate]) -> bool:
        """Runs one cycle of the candidate's vcluster with `queue` and the candidate, stopped at its outcome and undone; tells whether it
        was placed.

        False, without a cycle, where no question is left or the candidate holds nodes already.
        """
        if not self._left or self._runs(candidate):
            return False
        self._left -= 1
        others = [one for one in queue if one.uid != candidate.uid and not self._runs(one)]
        with undone(self._state) as state:
            for vcluster, reservations in list(state.backfill_reservations.items()):
                if candidate.uid in reservations:  # its own must not stand in its way
                    state.restore_reservations(vcluster, {uid: held for uid, held in reservations.items() if uid != candidate.uid})
            for outcome in decide(state, candidate.vcluster, [*others, candidate], self._now, explain=False):
                if outcome.candidate.uid == candidate.uid:
                    return isinstance(outcome, Placed)
        return False

    def _runs(self, candidate: Candidate) -> bool:
        """Tells whether the candidate itself holds nodes by now, so that a question about it makes no sense; an earlier attempt that is
        releasing does not count.
        """
        holder = self._state.holders.get(candidate.uid)
        return holder is not None and not holder.releasing


def _nodes(candidate: Candidate, ask: _Questions, ranges: Sequence[range]) -> Iterator[Change | None]:
    """Yields None after each question, and the change to the most nodes below the candidate's minimum that would start now.

    `ranges`: numbers of nodes to search, tried in this order until one of them has a solution.
    """
    for counts in ranges:
        found = yield from _found(counts, lambda count: replace(candidate, minimum=count, maximum=count), ask)
        if found is not None:
            text = f"{found} node{'s' if found > 1 else ''} instead of {candidate.minimum}"
            yield Change(kind="Nodes", value=str(found), text=text)
            return


def _ranges(state: ClusterState, candidate: Candidate) -> list[range]:
    """Returns ranges of smaller numbers of nodes, the largest first; within a range, whatever number starts, every smaller one does."""
    if candidate.topology != TIGHT:
        return [range(1, candidate.minimum)]
    policy = state.policy(candidate.vcluster)
    alike = candidate.conformance == REQUIRED or strategy_of(policy).conformant
    sizes: dict[str, dict[str, int]] = {}
    for bucket in state.free_counts.pool_for(candidate.need, policy.name if policy.home else "").buckets:
        groups = sizes.setdefault(bucket.key.fingerprint if alike else "", {})
        groups[bucket.key.group] = groups.get(bucket.key.group, 0) + bucket.usable
    reached = [reach(groups.values()) for groups in sizes.values()]
    most = [max(each[min(span, len(each)) - 1] for each in reached) for span in range(1, 1 + max(map(len, reached), default=0))]
    edges = [0, *(count for count in dict.fromkeys(most) if count < candidate.minimum - 1), candidate.minimum - 1]
    return [range(low + 1, high + 1) for low, high in pairwise(edges) if high > low][::-1][:MOST_SPANS]


def _walltime(candidate: Candidate, ask: _Questions) -> Iterator[Change | None]:
    """Yields None after each question, and the change to the longest shorter walltime, in whole minutes, that would start now."""
    longest = _LONGEST + 1 if candidate.walltime is None else min(_LONGEST + 1, ceil(candidate.walltime))
    shorter = range(_MINUTE, longest, _MINUTE)
    found = yield from _found(shorter, lambda seconds: replace(candidate, walltime=float(seconds)), ask)
    if found is not None:
        asked = "none" if candidate.walltime is None else format_duration(candidate.walltime)
        text = f"a walltime of {format_duration(found)} instead of {asked}"
        yield Change(kind="Walltime", value=format_duration(found), text=text)


def _found(values: Sequence[int], changed: Callable[[int], Candidate], ask: _Questions) -> Generator[None, None, int | None]:
    """Returns the largest of ascending values with which the changed candidate would start among the whole queue; None: none.

    Yields None after each question.
    """
    most = yield from _most(values, lambda value: ask.beside_reservations(changed(value)))
    if most is None:
        return None
    yield None
    if ask.among_all(changed(most)):
        return most
    return (yield from _most(values[: values.index(most)], lambda value: ask.among_all(changed(value))))


def _most(values: Sequence[int], holds: Callable[[int], bool]) -> Generator[None, None, int | None]:
    """Returns the largest of ascending values for which `holds` is True, given that it is then True for all smaller ones; None:
    none.

    Yields None before each question.
    """
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2 if low else 0
        yield None
        if holds(values[middle]):
            low = middle + 1
        else:
            high = middle
    return values[low - 1] if low else None


def _others(gpu_types: Collection[str], own: str) -> list[str]:
    """Returns the GPU types other than `own`, sorted; case does not distinguish types."""
    return sorted(kind for kind in set(gpu_types) if kind.lower() != own.lower())


def _instead(gpu_type: str) -> str:
    """Returns the words " instead of" with the GPU type that is asked for; empty where none is."""
    return f" instead of {gpu_type}" if gpu_type else ""
