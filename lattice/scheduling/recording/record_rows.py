"""Candidates, holders, nodes, policies and outcomes as rows of a cycle log, and back: one list of values each.

The order of columns is part of format 1 (docs/explanation/formats.md): columns are only ever added at the end. A reader ignores columns
that it does not know, and takes the default of those that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.model.hardware import Hardware, Key, Need, NodeFacts
from lattice.scheduling.model.outcomes import Outcome, Placed, Reclaim, Score, Waiting
from lattice.scheduling.model.policy import Borrowing, Limits, Policy, Weights
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.priority.shares import Standing
from lattice.views.ledger import TenantAccount

T = TypeVar("T")
Row = list[Any]
Way = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""The writer and the reader of one column whose value is not plain."""


class RowCodec(Generic[T]):
    """Converts values of one class to rows of a cycle log and back; `names` are the fields in the order of the columns.

    `later`: fields added to the format since; at the end of a row they are left out where None. `ways`: converters of fields that
    are not plain.
    """

    def __init__(self, kind: Callable[..., T], names: str, later: str = "", **ways: Way) -> None:
        self.kind = kind
        self._least: Final = len(names.split())
        self.names: Final = (*names.split(), *later.split())
        self._get = attrgetter(*self.names)
        self._pack = [(self.names.index(name), way[0]) for name, way in ways.items()]
        self._unpack = [(name, way[1]) for name, way in ways.items()]

    def row(self, value: T) -> Row:
        """Returns the row of a value: one plain value for each column, without fields of `later` at the end that are None."""
        row = list(self._get(value))
        for at, pack in self._pack:
            row[at] = pack(row[at])
        while len(row) > self._least and row[-1] is None:
            row.pop()
        return row

    def value(self, row: Sequence[Any]) -> T:
        """Rebuilds the value from its row; columns that the row lacks take the default of the class, and columns beyond those known are
        ignored.
        """
        given: dict[str, Any] = dict(zip(self.names, row, strict=False))
        for name, unpack in self._unpack:
            if name in given:
                given[name] = unpack(given[name])
        return self.kind(**given)

    @property
    def way(self) -> Way:
        """Returns (writer, reader) that convert a value of this codec's class to and from one column of another row."""
        return self.row, self.value


def bits(mask: int | None) -> bytes | None:
    """Returns a bit set of node indices as bytes, the lowest first: bit i of byte j is node 8·j + i; None for None."""
    return None if mask is None else mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def mask(text: bytes | None) -> int | None:
    """Returns the bit set of node indices of bytes that `bits` has made; None for None."""
    return None if text is None else int.from_bytes(text, "little")


def _names(names: frozenset[str] | None) -> list[str] | None:
    """Returns names sorted, for one column; None for None."""
    return None if names is None else sorted(names)


def _name_set(names: Sequence[str] | None) -> frozenset[str] | None:
    """Returns the names of one column as a set; None for None."""
    return None if names is None else frozenset(names)


def _maybe_pair(value: Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns the list of one column as a tuple; None for None."""
    return None if value is None else tuple(value)


_NAMES: Final[Way] = (_names, _name_set)
_BITS: Final[Way] = (bits, mask)
_INDICES: Final[Way] = (list, tuple)
_BLANK: Final[Way] = (lambda text: text or None, lambda text: text or "")
"""A text that was added to the format: an empty one is written as None."""
_NOTHING: Final[Way] = (lambda count: count or None, lambda count: count or 0)
"""A number that was added to the format: 0 is written as None."""
_NO_NAMES: Final[Way] = (lambda names: sorted(names) or None, lambda names: frozenset(names or ()))
"""A set of names that was added to the format: an empty one is written as None."""

_RANK: Final[Way] = (lambda rank: rank if rank > 1 else bool(rank), int)
"""A number that was a truth value once: 0 and 1 are written as such."""

NODE: Final = RowCodec(
    NodeFacts,
    "index name group cpus memory gpus features hollow usable state switch cxl_memory gpu_type gpu_memory unified fingerprint watts home",
    later="scratch architecture",
    features=_NAMES,
    scratch=_NOTHING,
    architecture=_BLANK,
)
NEED: Final = RowCodec(
    Need,
    "cpus memory gpus features hollow groups only without gpu_type gpu_memory unified allow_cxl",
    later="scratch architectures",
    features=_NAMES,
    scratch=_NOTHING,
    architectures=_NO_NAMES,
    groups=_NAMES,
    only=_BITS,
    without=_BITS,
)
CANDIDATE: Final = RowCodec(
    Candidate,
    "key uid tenant vcluster preemption_class submitted minimum maximum need user walltime grace topology conformance checkpointable"
    " preemptible sensitive reservation name held not_before back_off_until vcluster_open vcluster_known blocked",
    later="quota project",
    need=NEED.way,
    blocked=(lambda pair: pair, _maybe_pair),
    quota=_BLANK,
    project=_BLANK,
)
HOLDER: Final = RowCodec(
    NodeHolder,
    "uid key tenant user vcluster preemption_class nodes since started end walltime checkpointable preemptible sensitive releasing"
    " borrowed preemptions name checkpointing checkpointed burst",
    later="quota",
    nodes=_INDICES,
    borrowed=_INDICES,
    quota=_BLANK,
    burst=_RANK,
)
ACCOUNT: Final = RowCodec(
    TenantAccount, "max_nodes used_nodes max_allocations used_allocations", later="user_max_nodes user_max_allocations"
)
WEIGHTS: Final = RowCodec(
    Weights, "priority wait_time fair_share topology data_readiness backlog energy checkpoint conformance"
)  # fmt: skip
BORROWING: Final = RowCodec(Borrowing, "lend borrow max_borrowed priority max_duration return_grace")
LIMITS: Final = RowCodec(
    Limits, "max_nodes max_running max_running_per_user max_nodes_per_user max_running_per_tenant max_nodes_per_tenant"
)
POLICY: Final = RowCodec(
    Policy,
    "name kind weights interval depth home borrowing limits min_runtime_before_preemption max_preemptions",
    weights=WEIGHTS.way,
    borrowing=BORROWING.way,
    limits=LIMITS.way,
)
WINDOW: Final = RowCodec(
    ReservationWindow, "name start end nodes users tenants vclusters maintenance ignore_running", nodes=_BITS, users=_NAMES, tenants=_NAMES,
    vclusters=_NAMES,
)  # fmt: skip
HARDWARE: Final = RowCodec(
    Hardware,
    "cpus memory gpus features hollow cxl_memory gpu_type gpu_memory unified watts",
    later="scratch architecture",
    features=_NAMES,
    scratch=_NOTHING,
    architecture=_BLANK,
)
KEY: Final = RowCodec(
    Key,
    "hardware group switch fingerprint home marks",
    hardware=HARDWARE.way,
    marks=(lambda marks: [bits(one) for one in sorted(marks)], lambda marks: frozenset(mask(one) for one in marks)),
)
BACKFILL: Final = RowCodec(
    BackfillReservation,
    "uid vcluster start end counts",
    later="given",
    given=(lambda moment: moment or None, lambda moment: moment or 0.0),
    counts=(
        lambda counts: [(KEY.row(key), count) for key, count in counts],
        lambda counts: tuple((KEY.value(row), count) for row, count in counts),
    ),
)
STANDING: Final = RowCodec(Standing, "target usage fair_share utilisation multiplier")
RECLAIM: Final = RowCodec(Reclaim, "uid vcluster nodes grace", nodes=_INDICES)

PLACED, WAITING = 0, 1


def outcome_row(outcome: Outcome) -> Row:
    """Returns what a cycle decided of one candidate as a row of the cycle log; its score is logged apart."""
    match outcome:
        case Placed():
            return [PLACED, list(outcome.nodes), outcome.backfilled]
        case Waiting():
            reclaims = [RECLAIM.row(one) for one in outcome.reclaims]
            return [WAITING, outcome.reason, outcome.message, outcome.wake, outcome.latest, reclaims]


def outcome_of(row: Sequence[Any], candidate: Candidate, score: Score | None) -> Outcome:
    """Rebuilds the outcome of a candidate from its row and its score."""
    if row[0] == PLACED:
        return Placed(candidate, tuple(row[1]), score, row[2])
    reclaims = tuple(RECLAIM.value(one) for one in row[5])
    return Waiting(candidate, row[1], row[2], row[3], score, row[4], reclaims)


def fields_of(outcome: Outcome) -> Mapping[str, object]:
    """Returns an outcome as values by field name, for comparison; the names are those that `Difference` shows."""
    score = outcome.score
    terms = {} if score is None else {f"score.f{number}": value for number, value in enumerate(score.terms, 1)}
    scored = {} if score is None else {"score.total": score.total, "score.multiplier": score.multiplier, **terms}
    match outcome:
        case Placed():
            return {"outcome": "placed", "nodes": outcome.nodes, "backfilled": outcome.backfilled, **scored}
        case Waiting():
            return {
                "outcome": "waiting", "reason": outcome.reason, "message": outcome.message, "wake": outcome.wake,
                "latest": outcome.latest, "reclaims": outcome.reclaims, **scored,
            }  # fmt: skip
