"""Encodes snapshots and decisions as payloads of a cycle log, and decodes them: whole ones, and between them only changes.

`CycleEncoder` writes what `CycleDecoder` reads: both keep the state after the last payload. Numbers survive exactly. Each payload
carries a digest of its whole decision, so that a wrongly decoded one is never taken for the recorded one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import msgspec

from lattice.accounting.budgets import Scope
from lattice.errors import Corrupt
from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.model.outcomes import Outcome, Score
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.priority.scoring import Backlog
from lattice.scheduling.priority.shares import Standing
from lattice.scheduling.recording.record import Scored, Snapshot
from lattice.scheduling.recording.record_rows import (
    ACCOUNT,
    BACKFILL,
    CANDIDATE,
    HOLDER,
    NODE,
    POLICY,
    STANDING,
    WINDOW,
    Row,
    bits,
    mask,
    outcome_of,
    outcome_row,
)
from lattice.scheduling.state.budget_gate import Exhausted
from lattice.views.ledger import TenantAccount

RULES: Final = 4
"""The version of the rules of decision, raised when equal snapshots are decided otherwise on purpose (docs/explanation/formats.md)."""
_DIGEST_BYTES: Final = 16
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_ABSENT: Final = object()
_OF_TREES: Final = ("trees", "capacity", "before")


@dataclass
class _Baseline:
    """The state after the last payload, from which the next payload's changes count; by index, uid, tenant or vcluster.

    Holders stand in the order in which they were put.
    """

    nodes: dict[int, NodeFacts] = field(default_factory=dict)
    holders: dict[str, NodeHolder] = field(default_factory=dict)
    accounts: dict[str, TenantAccount] = field(default_factory=dict)
    policies: dict[str, Policy] = field(default_factory=dict)
    windows: tuple[ReservationWindow, ...] = ()
    claims: frozenset[str] = frozenset()
    lists: dict[str, frozenset[int]] = field(default_factory=dict)
    backfill_reservations: dict[str, dict[str, BackfillReservation]] = field(default_factory=dict)
    heirs: dict[str, dict[str, float]] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    shares: dict[tuple[str, str], float] = field(default_factory=dict)
    with_work: dict[str, Collection[str]] = field(default_factory=dict)
    multipliers: dict[tuple[str, str, str], float] = field(default_factory=dict)
    exhausted: dict[Scope, Exhausted] = field(default_factory=dict)
    odd: dict[int, float] = field(default_factory=dict)
    """By index of a node whose recorded end differs from that of its holder: the recorded end, seconds since the epoch."""
    spared: frozenset[int] = frozenset()
    """Nodes that belong to a holder but were recorded as free."""
    queues: dict[str, dict[str, Candidate]] = field(default_factory=dict)
    outcomes: dict[str, dict[str, Row]] = field(default_factory=dict)
    orders: dict[str, list[int]] = field(default_factory=dict)
    """By vcluster: the places of the candidates in the order in which its last cycle decided them."""
    trees: dict[str, Any] | None = None
    """The quota trees and their capacity; None without a tree."""
    demand: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    """By group of the trees: the amounts requested, used, and used by non-preemptible work."""

    def held(self) -> dict[int, float]:
        """Returns when each held node comes free according to its holders; of several holders of a node, the last put counts."""
        return {node: NEVER if one.end is None else one.end for one in self.holders.values() for node in one.nodes}


@dataclass(frozen=True, slots=True)
class Turn:
    """The recorded cycle of one vcluster: its input (`moment`) and its outcomes.

    `program`: the version that wrote it. `rules`: the version of the rules by which it was decided.
    """

    moment: Snapshot
    outcomes: tuple[Outcome, ...]
    program: str
    rules: int = RULES


def encoded(outcomes: Sequence[Outcome]) -> bytes:
    """Returns outcomes as bytes: equal outcomes give equal bytes, to the last digit of every score."""
    rows = [(one.candidate.uid, *outcome_row(one)) for one in outcomes]
    return _ENCODE([rows, _scores([one.score for one in outcomes])])


class CycleEncoder:
    """Encodes the cycles of a log as payloads, one after the other; the recorder of a leading scheduler keeps one."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._baseline = _Baseline()
        self._held: dict[int, float] = {}

    def payload(self, moment: Snapshot, outcomes: Sequence[Outcome], *, whole: bool) -> bytes:
        """Returns one vcluster's cycle as a payload: in full (`whole`, as the first must be), or as the changes since the last payload.

        Each counts for the next one, so that all must be written, in this order.
        """
        if whole:
            self._baseline, self._held = _Baseline(), {}
        said: dict[str, Any] = {"program": self._program, "rules": RULES} if whole else {}
        self._input(said, moment)
        self._decision(said, moment, outcomes)
        return _ENCODE(said)

    def _input(self, said: dict[str, Any], moment: Snapshot) -> None:
        """Writes the input of a cycle into the payload `said`, and brings the baseline up to it: tables as changes, single values
        in full.
        """
        baseline, scored = self._baseline, moment.scored
        settings = (moment.power, moment.overrun, moment.allowance, scored.reference_wait, scored.energy_price, scored.running)
        said.update(cycle=moment.cycle, vcluster=moment.vcluster, now=moment.now, settings=settings)
        if moment.waiting:
            said["waiting"] = sorted(moment.waiting)
        said.update(
            scored=scored.vclusters, backlog=[(*one[:3], *([sorted(one.waiting)] if one.waiting else ())) for one in scored.backlog]
        )
        _table(said, "nodes", baseline.nodes, moment.nodes, NODE.row)
        _table(said, "holders", baseline.holders, moment.holders, HOLDER.row)
        _table(said, "accounts", baseline.accounts, moment.accounts, ACCOUNT.row)
        _table(said, "policies", baseline.policies, moment.policies, POLICY.row)
        _table(said, "lists", baseline.lists, moment.lists, lambda lists: [bits(one) for one in sorted(lists)])
        _table(
            said, "promises", baseline.backfill_reservations, moment.backfill_reservations,
            lambda kept: [BACKFILL.row(one) for one in kept.values()],
        )  # fmt: skip
        _table(said, "heirs", baseline.heirs, moment.heirs, dict)
        _table(said, "standings", baseline.standings, scored.standings, STANDING.row)
        _table(said, "shares", baseline.shares, scored.shares, lambda share: share)
        _table(said, "withWork", baseline.with_work, scored.with_work, sorted)
        _table(said, "multipliers", baseline.multipliers, scored.multipliers, lambda factor: factor)
        _table(said, "exhausted", baseline.exhausted, moment.exhausted, list)
        if baseline.windows != moment.windows:
            baseline.windows = moment.windows
            said["windows"] = [WINDOW.row(one) for one in moment.windows]
        if baseline.claims != moment.claims:
            baseline.claims = moment.claims
            said["claims"] = sorted(moment.claims)
        self._quota(said, moment)
        self._taken(said, moment)

    def _quota(self, said: dict[str, Any], moment: Snapshot) -> None:
        """Writes the quota trees where they changed, and the changes of their demand, into the payload."""
        baseline, quota = self._baseline, moment.quota
        trees = None if quota is None else {part: quota[part] for part in _OF_TREES}
        if trees != baseline.trees:
            baseline.trees = said["trees"] = trees
        _table(said, "demand", baseline.demand, {} if quota is None else quota["demand"], lambda amounts: amounts)

    def _taken(self, said: dict[str, Any], moment: Snapshot) -> None:
        """Writes the nodes whose recorded end differs from that of their holder, and those of holders that are free all the same, if these
        have changed since the last payload.
        """
        baseline = self._baseline
        if "holders" in said:
            self._held = baseline.held()
        held, odd, spared = self._held, {}, frozenset[int]()
        if held != moment.taken:
            odd = {index: end for index, end in moment.taken.items() if held.get(index) != end}
            spared = frozenset(held.keys() - moment.taken.keys())
        if odd != baseline.odd or spared != baseline.spared:
            baseline.odd, baseline.spared = odd, spared
            said["taken"] = [list(odd.items()), sorted(spared)]

    def _decision(self, said: dict[str, Any], moment: Snapshot, outcomes: Sequence[Outcome]) -> None:
        """Writes queue, order, changed outcomes, all scores and the digest of a cycle into the payload, and brings the baseline up
        to them.
        """
        baseline, name = self._baseline, moment.vcluster
        queue = baseline.queues.setdefault(name, {})
        given = {candidate.uid: candidate for candidate in moment.candidates}
        _table(said, "queue", queue, given, CANDIDATE.row)
        if list(queue) != list(given):
            baseline.queues[name] = queue = given
            said["line"] = list(given)
        places = {uid: place for place, uid in enumerate(queue)}
        order = [places[one.candidate.uid] for one in outcomes]
        if order != baseline.orders.get(name):
            baseline.orders[name] = order
            said["order"] = order
        before, rows = baseline.outcomes.get(name, {}), [outcome_row(one) for one in outcomes]
        by_uid = {one.candidate.uid: row for one, row in zip(outcomes, rows, strict=True)}
        said["outcomes"] = [(places[uid], row) for uid, row in by_uid.items() if before.get(uid) != row]
        baseline.outcomes[name] = by_uid
        said["scores"] = _scores([one.score for one in outcomes])
        said["digest"] = _digest(encoded(outcomes))


class CycleDecoder:
    """Decodes the payloads of a cycle log in the order in which they were written; the first must be a whole one."""

    def __init__(self) -> None:
        self._baseline: _Baseline | None = None
        self._program, self._rules = "", RULES

    def turn(self, payload: bytes, *, whole: bool) -> Turn:
        """Returns the recorded cycle of the next payload, in full (`whole`) or as changes since the one before.

        Raises Corrupt where it cannot be read or its digest does not match, or where changes come first.
        """
        try:
            said = msgspec.msgpack.decode(payload)
            if whole:
                self._baseline, self._program = _Baseline(), said["program"]
                self._rules = int(said.get("rules", 1))  # what was written before there was a number
            if self._baseline is None:
                raise Corrupt("a cycle log is read from a whole moment on", reason="CycleLogDamaged")
            moment = self._moment(self._baseline, said)
            outcomes = self._outcomes(self._baseline, moment, said)
        except (msgspec.MsgspecError, KeyError, IndexError, TypeError, ValueError, struct.error) as error:
            raise Corrupt(f"a frame of the cycle log cannot be read: {error!r}", reason="CycleLogDamaged") from error
        if _digest(encoded(outcomes)) != said["digest"]:
            sentence = f"cycle {moment.cycle} of vCluster {moment.vcluster!r} does not match its digest: the log is damaged"
            raise Corrupt(sentence, reason="CycleLogDamaged")
        return Turn(moment, outcomes, self._program, self._rules)

    def _moment(self, baseline: _Baseline, said: Mapping[str, Any]) -> Snapshot:
        """Brings the baseline up to the payload `said`, and returns the input of its cycle."""
        _apply(said, "nodes", baseline.nodes, NODE.value)
        _apply(said, "holders", baseline.holders, HOLDER.value)
        _apply(said, "accounts", baseline.accounts, ACCOUNT.value)
        _apply(said, "policies", baseline.policies, POLICY.value)
        _apply(said, "lists", baseline.lists, lambda lists: frozenset(mask(one) or 0 for one in lists))
        _apply(said, "promises", baseline.backfill_reservations, lambda kept: {one.uid: one for one in map(BACKFILL.value, kept)})
        _apply(said, "heirs", baseline.heirs, dict)
        _apply(said, "standings", baseline.standings, STANDING.value)
        _apply(said, "shares", baseline.shares, lambda share: share)
        _apply(said, "withWork", baseline.with_work, frozenset)
        _apply(said, "multipliers", baseline.multipliers, lambda factor: factor)
        _apply(said, "exhausted", baseline.exhausted, lambda found: Exhausted(*found))
        baseline.windows = tuple(WINDOW.value(row) for row in said["windows"]) if "windows" in said else baseline.windows
        baseline.claims = frozenset(said["claims"]) if "claims" in said else baseline.claims
        if "taken" in said:
            baseline.odd, baseline.spared = dict(said["taken"][0]), frozenset(said["taken"][1])
        baseline.trees = said.get("trees", baseline.trees)
        _apply(said, "demand", baseline.demand, lambda amounts: amounts)
        queue = baseline.queues.setdefault(said["vcluster"], {})
        _apply(said, "queue", queue, CANDIDATE.value)
        if "line" in said:
            queue = baseline.queues[said["vcluster"]] = {uid: queue[uid] for uid in said["line"]}
        power, overrun, allowance, reference, price, running = said["settings"][:6]
        return Snapshot(
            cycle=said["cycle"], vcluster=said["vcluster"], now=said["now"], candidates=tuple(queue.values()), nodes=dict(baseline.nodes),
            taken={index: end for index, end in {**baseline.held(), **baseline.odd}.items() if index not in baseline.spared},
            holders=dict(baseline.holders), claims=baseline.claims, accounts=dict(baseline.accounts), policies=dict(baseline.policies),
            windows=baseline.windows, lists=dict(baseline.lists), backfill_reservations=dict(baseline.backfill_reservations),
            heirs=dict(baseline.heirs), waiting=frozenset(said.get("waiting", ())), power=power,
            exhausted={Scope(*scope): found for scope, found in baseline.exhausted.items()},
            overrun=overrun,
            allowance=allowance,
            scored=Scored(
                tuple(said["scored"]), reference, price, running, tuple(map(_backlog, said["backlog"])),
                dict(baseline.standings), dict(baseline.shares), dict(baseline.with_work), dict(baseline.multipliers),
            ),
            quota=None if baseline.trees is None else {**baseline.trees, "demand": dict(baseline.demand)},
        )  # fmt: skip

    def _outcomes(self, baseline: _Baseline, moment: Snapshot, said: Mapping[str, Any]) -> tuple[Outcome, ...]:
        """Returns the outcomes of the payload's cycle in their order; those that it does not contain are as in the vcluster's cycle before.

        The baseline has them from then on.
        """
        name, candidates = moment.vcluster, moment.candidates
        order = baseline.orders[name] = said.get("order", baseline.orders.get(name, []))
        rows = {**baseline.outcomes.get(name, {}), **{candidates[place].uid: row for place, row in said["outcomes"]}}
        decided = [candidates[place] for place in order]
        baseline.outcomes[name] = {candidate.uid: rows[candidate.uid] for candidate in decided}
        scores = _scores_of(said["scores"], len(decided))
        return tuple(outcome_of(rows[one.uid], one, score) for one, score in zip(decided, scores, strict=True))


def _table(said: dict[str, Any], name: str, before: dict[Any, Any], after: Mapping[Any, Any], row: Callable[[Any], Any]) -> None:
    """Writes a table's removed and changed entries, in this order, into the payload `said`, and brings `before` up to date.

    Writes nothing where the table is unchanged. `row` encodes one value.
    """
    if before == after:
        return
    gone = [key for key in before if key not in after]
    put = [(key, value) for key, value in after.items() if (known := before.get(key, _ABSENT)) is not value and known != value]
    _change(before, gone, put)
    said[name] = [gone, [msgspec.Raw(_ENCODE((key, row(value)))) for key, value in put]]  # one by one: no long hold of the interpreter


def _apply(said: Mapping[str, Any], name: str, table: dict[Any, Any], value: Callable[[Any], Any]) -> None:
    """Brings a table up to date with the entries removed and put in the payload under `name`; does nothing where it has none.

    `value` decodes one value.
    """
    if name in said:
        gone, put = said[name]
        _change(table, map(_key, gone), [(_key(key), value(row)) for key, row in put])


def _change(table: dict[Any, Any], gone: Iterable[Any], put: Iterable[tuple[Any, Any]]) -> None:
    """Removes the keys `gone` from a table and appends the entries `put`, so that changed entries come last, as in the live table."""
    for key in gone:
        del table[key]
    for key, value in put:
        table.pop(key, None)
        table[key] = value


def _backlog(row: Sequence[Any]) -> Backlog:
    """Returns the backlog of a row; rows of earlier releases name no users."""
    waiting = frozenset((tenant, user) for tenant, user in (row[3] if len(row) > 3 else ()))
    return Backlog(row[0], row[1], row[2], waiting)


def _key(key: Any) -> Any:
    """Returns a decoded key as a dict can have it: lists become tuples."""
    return tuple(key) if isinstance(key, list) else key


def _digest(text: bytes) -> bytes:
    """Returns the digest of bytes (BLAKE2b, 16 bytes)."""
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()


def _scores(scores: Sequence[Score | None]) -> list[Any]:
    """Encodes scores as [number of terms, bytes]: all totals, all multipliers, all first terms …, as little-endian doubles.

    Where scores differ in their number of terms, the number is −1 and a list of scores stands in place of the bytes.
    """
    if not scores:
        return [0, b""]
    made_of = [None if one is None else (one.total, *one.made_of()) for one in scores]
    terms = {-1 if one is None else len(one[1]) for one in made_of}
    if len(terms) > 1 or -1 in terms:
        return [-1, [None if one is None else (float(one[0]), float(one[2]), *map(float, one[1])) for one in made_of]]
    totals, all_terms, multipliers = zip(*filter(None, made_of), strict=True)
    columns = chain(totals, multipliers, *zip(*all_terms, strict=True))
    width = terms.pop()
    return [width, struct.pack(f"<{len(scores) * (width + 2)}d", *columns)]


def _scores_of(said: Sequence[Any], count: int) -> list[Score | None]:
    """Decodes what `_scores` has encoded of `count` scores; None stands for a candidate without one."""
    width, given = said
    if width < 0:
        return [None if one is None else Score(one[0], tuple(one[2:]), one[1]) for one in given]
    numbers = struct.unpack(f"<{count * (width + 2)}d", given)
    columns = [numbers[at * count : (at + 1) * count] for at in range(width + 2)]
    return [Score(one[0], one[2:], one[1]) for one in zip(*columns, strict=True)]
