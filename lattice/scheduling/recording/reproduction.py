"""Decides recorded cycles again and compares the outcomes byte by byte; differences are listed by allocation and field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lattice.errors import Corrupt
from lattice.scheduling.model.outcomes import Outcome
from lattice.scheduling.recording.codec import CycleDecoder, Turn, encoded
from lattice.scheduling.recording.cycle_log import LATEST, WHOLE, excerpt, payload, scan
from lattice.scheduling.recording.record import reproduce
from lattice.scheduling.recording.record_rows import fields_of


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of an outcome that differs: its value in the record, and its value as this program decides."""

    uid: str
    key: str
    field: str
    recorded: object
    now: object


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A recorded cycle of one vcluster after it was decided again; `same`: the outcomes are equal byte for byte."""

    turn: Turn
    same: bool
    differences: tuple[Difference, ...] = ()


def turns(log: bytes, cycle: int = LATEST) -> list[Turn]:
    """Returns the recorded cycles of all vclusters under one cycle number (`LATEST`: the last), in the order in which they were decided.

    Raises NotFound where the log lacks the number, Corrupt where it is damaged, Rejected where `log` is no cycle log.
    """
    part = excerpt(log, cycle)
    frames = scan(part).frames
    reader, wanted = CycleDecoder(), frames[-1].cycle
    found = []
    for one in frames:
        turn = reader.turn(payload(part, one), whole=one.kind == WHOLE)
        if turn.moment.cycle != one.cycle:
            raise Corrupt(f"the frame of cycle {one.cycle} holds cycle {turn.moment.cycle}", reason="CycleLogDamaged")
        if one.cycle == wanted:
            found.append(turn)
    return found


def again(turn: Turn) -> Reproduced:
    """Decides a recorded cycle again with this program; returns whether the outcomes are equal byte for byte, and where they differ."""
    outcomes = reproduce(turn.moment)
    if encoded(outcomes) == encoded(turn.outcomes):
        return Reproduced(turn, same=True)
    return Reproduced(turn, same=False, differences=tuple(differences(turn.outcomes, outcomes)))


def differences(recorded: Sequence[Outcome], now: Sequence[Outcome]) -> Iterator[Difference]:
    """Yields the differences between two lists of outcomes of the same candidates, in the order of `recorded`.

    A candidate that only `recorded` has gives one difference (`now` is None); one that only `now` has gives none.
    """
    others = {outcome.candidate.uid: (place, outcome) for place, outcome in enumerate(now, start=1)}
    for place, outcome in enumerate(recorded, start=1):
        candidate = outcome.candidate
        found = others.get(candidate.uid)
        if found is None:
            yield Difference(candidate.uid, candidate.key, "outcome", fields_of(outcome)["outcome"], None)
            continue
        before, after = fields_of(outcome), fields_of(found[1])
        if place != found[0]:
            yield Difference(candidate.uid, candidate.key, "order", place, found[0])
        for field in dict.fromkeys((*before, *after)):
            was, is_now = before.get(field), after.get(field)
            if was != is_now or type(was) is not type(is_now):
                yield Difference(candidate.uid, candidate.key, field, was, is_now)
