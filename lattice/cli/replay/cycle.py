"""`lattice replay --cycle` and `lattice replay cycles`: decides a recorded cycle again, and compares with what was decided then."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

import msgspec

from lattice import __version__
from lattice.cli import exits
from lattice.cli.gateway import ask_scheduler
from lattice.cli.render.text import Column, memory, plural, table
from lattice.cycle_files import CycleFolder
from lattice.errors import Corrupt, NotFound, Rejected
from lattice.scheduling.model.outcomes import Outcome, Placed
from lattice.scheduling.queries.answers import CYCLE_SCHEMA, Cycle, CycleLog, Cycles, Decided, DecidedCycle, Differing, Part, Stretch
from lattice.scheduling.recording.codec import RULES
from lattice.scheduling.recording.cycle_log import cycle_of
from lattice.scheduling.recording.reproduction import Difference, Reproduced, again, turns
from lattice.units import fold_nodes, format_time

if TYPE_CHECKING:
    from lattice.cli.console import Console

P = TypeVar("P", bound=Part)
MOST_SHOWN: Final = 50
"""Most differences in the table; documents have all of them."""
_STRETCHES: Final = (
    Column("FIRST", right=True), Column("LAST", right=True), Column("FROM"), Column("TO"), Column("SIZE", right=True),
    Column("FILE", leave=1), Column("NOTE", shrink_to=30),
)  # fmt: skip
_PLACED: Final = (
    Column("PLACED", shrink_to=16), Column("USER", shrink_to=8), Column("NODES", right=True), Column("SCORE", right=True),
    Column("WHERE", shrink_to=12), Column("NOTE"),
)  # fmt: skip
_REASONS: Final = (Column("WAITING", right=True), Column("REASON"), Column("FOR EXAMPLE", shrink_to=16), Column("MESSAGE", shrink_to=30))
_WAITING: Final = (Column("WAITING", shrink_to=16), Column("USER", shrink_to=8), Column("SCORE", right=True), Column("REASON"),
                   Column("MESSAGE", shrink_to=30))  # fmt: skip
_DIFFERENCES: Final = (
    Column("ALLOCATION", shrink_to=16), Column("UID", leave=1), Column("FIELD"), Column("RECORDED", shrink_to=20),
    Column("NOW", shrink_to=20),
)  # fmt: skip


def run(console: Console) -> int:
    """Lists the recorded cycles, or decides one again and shows the differences; returns FAILED where the same rules decide otherwise, DONE
    also where other rules recorded it.

    Raises Rejected or NotFound where the cycle cannot be read or is not recorded, or decided nothing on the vcluster asked for.
    """
    if console.format == "name":
        raise Rejected("recorded cycles have no names to print: use -o table, wide, json or yaml", reason="BadInput")
    if console.args.words:
        return _list(console)
    log = _log(console, cycle_of(console.args.cycle))
    try:
        found = [again(turn) for turn in turns(log)]
    except Corrupt as error:
        raise Rejected(error.message, reason=error.reason) from error
    shown = _answer([one for one in found if console.args.vcluster in (None, "", one.turn.moment.vcluster)])
    if shown is None:
        there = ", ".join(sorted(one.turn.moment.vcluster for one in found))
        raise NotFound(
            f'nothing waited in vCluster "{console.args.vcluster}" in this cycle; it decided on {there}', reason="CycleNotRecorded"
        )
    if console.is_document:
        console.document(msgspec.to_builtins(shown))
    else:
        console.say(*_lines(shown, console))
    return exits.DONE if shown.reproduced or shown.rules != shown.rules_now else exits.FAILED


# -- what is recorded -----------------------------------------------------------------------------------------------------


def _list(console: Console) -> int:
    """Prints which cycles are recorded, of a local log or the scheduler's, and which are missing; returns DONE."""
    folder = console.args.log
    found = _local(Path(folder).expanduser()).cycles() if folder else _ask(console, "/v1/cycles", Cycles)
    if console.is_document:
        console.document(msgspec.to_builtins(found))
    else:
        console.say(*table(_STRETCHES, [_stretch(one) for one in found.stretches], width=console.outside.columns))
        console.say(*(f"Missing: {first} to {last}" if first < last else f"Missing: {first}" for first, last in _gaps(found.stretches)))
    return exits.DONE


def _stretch(one: Stretch) -> list[str]:
    """Returns the cells of one stretch of recorded cycles, with what is damaged or missing at its end."""
    torn = f"{one.torn} bytes of an unfinished cycle at its end are left out" if one.torn else ""
    last = str(one.last) if one.last else ""
    return [str(one.first), last, one.began, one.ended, memory(one.bytes), one.file, one.damage or torn]


def _gaps(stretches: Sequence[Stretch]) -> list[tuple[int, int]]:
    """Returns first and last of each range of cycles that is missing between recorded stretches; damaged stretches are passed over."""
    sound = [one for one in stretches if one.last]
    return [(one.last + 1, after.first - 1) for one, after in pairwise(sound) if after.first > one.last + 1]


# -- one cycle ------------------------------------------------------------------------------------------------------------


def _log(console: Console, cycle: int) -> bytes:
    """Returns the log of a cycle, 0: of the last; from a file or folder, else from the leading scheduler."""
    if console.args.log:
        return _local(Path(console.args.log).expanduser()).cycle(cycle).log
    name = str(cycle) if cycle else "last"
    return _ask(console, f"/v1/cycles/{quote(name, safe='')}", CycleLog).log


def _local(path: Path) -> CycleFolder:
    """Returns the cycle log at a path. Raises Rejected where nothing is there."""
    if not path.exists():
        raise Rejected(f"--log={path}: there is no such file or folder", reason="BadInput")
    return CycleFolder(path)


def _ask(console: Console, path: str, kind: type[P]) -> P:
    """Returns the scheduler's answer on recorded cycles."""
    return ask_scheduler(console, path, kind, "is no record of cycles")


def _answer(found: Sequence[Reproduced]) -> Cycle | None:
    """Returns the document on the cycle of these vclusters; None where there are none."""
    if not found:
        return None
    turn, moment = found[0].turn, found[0].turn.moment
    parts = [_turn(one) for one in found]
    return Cycle(
        schema=CYCLE_SCHEMA, cycle=moment.cycle, at=format_time(moment.now, micro=True), program=turn.program,
        rules=turn.rules, rules_now=RULES,
        reproduced=all(part.reproduced for part in parts), vclusters=parts,
    )  # fmt: skip


def _turn(one: Reproduced) -> DecidedCycle:
    """Returns the decided cycle of one vcluster as a document, with the differences to what was recorded."""
    moment, name = one.turn.moment, one.turn.moment.vcluster
    policy = moment.policies.get(name)
    names = {index: facts.name for index, facts in moment.nodes.items()}
    return DecidedCycle(
        vcluster=name,
        policy=policy.kind if policy is not None else "",
        reproduced=one.same,
        decided=[_decided(outcome, names) for outcome in one.turn.outcomes],
        differences=[_differing(each) for each in one.differences],
    )


def _decided(outcome: Outcome, names: dict[int, str]) -> Decided:
    """Returns one outcome as a document; `names`: the node names by index."""
    candidate = outcome.candidate
    namespace, _, name = candidate.key.partition("/")
    score = None if outcome.score is None else outcome.score.total
    common = Decided(namespace=namespace, name=name, uid=candidate.uid, user=candidate.user, outcome="waiting", score=score)
    if isinstance(outcome, Placed):
        nodes = [names[index] for index in outcome.nodes]
        return msgspec.structs.replace(common, outcome="placed", nodes=nodes, backfilled=outcome.backfilled)
    latest = None if outcome.latest is None else format_time(outcome.latest)
    return msgspec.structs.replace(common, reason=outcome.reason, message=outcome.message, latest=latest)


def _differing(one: Difference) -> Differing:
    """Returns one difference as a document."""
    return Differing(uid=one.uid, allocation=one.key, field=one.field, recorded=_text(one.recorded), now=_text(one.now))


def _text(value: object) -> str:
    """Returns a value as text; `absent` for None."""
    return value if isinstance(value, str) else "absent" if value is None else repr(value)


# -- as text --------------------------------------------------------------------------------------------------------------


def _lines(shown: Cycle, console: Console) -> list[str]:
    """Returns a decided cycle as lines: what was placed and waits in each vcluster, and whether it was reproduced."""
    width = console.outside.columns
    lines = [f"Cycle {shown.cycle} at {shown.at}, recorded by lattice {shown.program}"]
    for part in shown.vclusters:
        placed = [one for one in part.decided if one.outcome == "placed"]
        waiting = [one for one in part.decided if one.outcome == "waiting"]
        policy = f" ({part.policy})" if part.policy else ""
        lines += ["", f"{part.vcluster}{policy}: {len(placed)} placed, {len(waiting)} waiting"]
        if placed:
            lines += table(_PLACED, [_placed(one) for one in placed], width=width)
        if waiting:
            lines += _all(waiting, width) if console.format == "wide" else _by_reason(waiting, width)
    outcomes = sum(len(part.decided) for part in shown.vclusters)
    if shown.reproduced:
        return [*lines, "", f"Reproduced byte for byte: {plural(outcomes, 'outcome')}."]
    return [*lines, *_differences(shown, width)]


def _differences(shown: Cycle, width: int) -> list[str]:
    """Returns the lines on a cycle that was not reproduced; for one that other rules recorded, only that it is not compared."""
    found = [one for part in shown.vclusters for one in part.differences]
    if shown.rules != shown.rules_now:
        age = "an older rule" if shown.rules < shown.rules_now else "a newer rule"
        numbers = f"(rules {shown.rules}, and these are {shown.rules_now})"
        shows = f"-o json shows {plural(len(found), 'difference')}"
        return ["", f"Not compared: recorded by {age} {numbers}: it decides otherwise on purpose, which is no defect; {shows}."]
    lines = ["", f"Not reproduced: {plural(len(found), 'difference')}."]
    if found:
        lines += table(
            _DIFFERENCES, [[one.allocation, one.uid, one.field, one.recorded, one.now] for one in found[:MOST_SHOWN]], width=width
        )
    if len(found) > MOST_SHOWN:
        lines.append(f"and {len(found) - MOST_SHOWN} more: -o json shows them all")
    if shown.program != __version__:
        lines.append(f"It was recorded by lattice {shown.program}, and this is {__version__}: another version may decide otherwise.")
    return lines


def _name(one: Decided) -> str:
    """Returns an outcome's allocation as NAMESPACE/NAME; what it has where one is missing."""
    return f"{one.namespace}/{one.name}" if one.name else one.namespace


def _score(one: Decided) -> str:
    """Returns an outcome's score with three digits; empty for none."""
    return "" if one.score is None else f"{one.score:.3f}"


def _placed(one: Decided) -> list[str]:
    """Returns the cells of one placed allocation."""
    return [_name(one), one.user, str(len(one.nodes)), _score(one), fold_nodes(one.nodes), "backfilled" if one.backfilled else ""]


def _all(waiting: Sequence[Decided], width: int) -> list[str]:
    """Returns all waiting allocations as a table, with reason and sentence each."""
    return table(_WAITING, [[_name(one), one.user, _score(one), one.reason, one.message] for one in waiting], width=width)


def _by_reason(waiting: Sequence[Decided], width: int) -> list[str]:
    """Returns one line a reason, the most frequent first, with the first allocation of the queue that has it."""
    ranked = sorted(waiting, key=lambda one: one.reason)
    groups = [list(group) for _, group in groupby(ranked, key=lambda one: one.reason)]
    groups.sort(key=lambda group: (-len(group), group[0].reason))
    return table(_REASONS, [[str(len(group)), group[0].reason, _name(group[0]), group[0].message] for group in groups], width=width)
