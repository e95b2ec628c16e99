"""Explains why an allocation waits, what is before it and when it is expected to start, or how it ended: for `lattice why` and `diag`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from lattice.cli.gateway import ANSWER_SECONDS, ask
from lattice.cli.leadership import leadership
from lattice.cli.render.allocations import attempt_sentence, label, reason_sentence
from lattice.cli.render.answers import (
    blocker_table,
    change_lines,
    expected_sentence,
    position_sentence,
    preemption_lines,
    reservation_sentence,
    score_lines,
)
from lattice.cli.render.text import age, fields, hang
from lattice.cli.values import camel
from lattice.errors import LatticeError, NotFound
from lattice.kube.resources import VCLUSTERS
from lattice.models.conditions import FINAL_PHASES, PENDING
from lattice.models.reasons import BEYOND_LIMIT, END_REASONS, IN_ORDER, PENDING_REASONS, STAGING_REASONS
from lattice.scheduling.conversion.policies import weights_of
from lattice.scheduling.queries.answers import WHY_SCHEMA, Ranking, Silence, Why, Work
from lattice.scheduling.queries.status_rows import blocker, is_final, leaving, phase_of, since
from lattice.views import Allocation, VCluster
from lattice.views.allocation import Score

if TYPE_CHECKING:
    from lattice.cli.console import Console

_NEXT = {reason.word: reason.next_step for reason in (*STAGING_REASONS, *END_REASONS, *PENDING_REASONS)}
_MEANING = {reason.word: reason.meaning for reason in (*STAGING_REASONS, *END_REASONS, *PENDING_REASONS)}
_ROUNDING = 0.003
"""Tolerance when a total is compared with its terms, all rounded to three decimals, before a budget is blamed for the difference."""
_NAMED_VERBS = ("logs", "release", "cancel", "quota explain")
"""Verbs in the next steps that are completed by the allocation's number."""


def answer_fully(console: Console, one: Allocation, seconds: float = ANSWER_SECONDS) -> Why:
    """Returns why one allocation waits or how it ended; the scheduler, asked only while it is pending, has `seconds` for its part.

    Where it is silent, `scheduler` says so.
    """
    answer = explain_allocation(one)
    if not is_final(one):
        answer = _with_failure(one, _with_scheduler(console, one, answer, seconds))
    return _with_weights(console, one, answer)


def _with_failure(one: Allocation, answer: Why) -> Why:
    """Returns the answer with what ended the last attempt, where the allocation waits for the next one after a failure; else unchanged."""
    if answer.reason != "RetryBackOff" or not one.status.attempts:
        return answer
    return msgspec.structs.replace(answer, message=f"{answer.message}; attempt {attempt_sentence(one.status.attempts[-1])}")


def explain_allocation(one: Allocation) -> Why:
    """Returns the answer that the Allocation object alone gives: phase, reason, sentence, next step, and its score."""
    why, phase, going = blocker(one), phase_of(one), leaving(one)
    reason = why.reason if why is not None else "NotYetEvaluated" if phase == PENDING else phase
    message = why.message.removeprefix("cancelled").removeprefix(": ") if why is not None and reason == "Cancelled" else ""
    if why is not None and reason != "Cancelled":
        message = why.message
    if going and going != reason:
        reason, _, message = reason_sentence(one).partition(": ")
    return Why(
        schema=WHY_SCHEMA,
        allocation=Work(
            namespace=one.metadata.namespace, name=one.metadata.name, number=one.status.number, uid=one.metadata.uid,
            user=one.spec.user, job=one.spec.tags.get("name", ""),
        ),
        phase=phase,
        reason=reason,
        message=message or _MEANING.get(reason, ""),
        since=since(one),
        next_step=next_step(reason, label(one), message),
        score=_score(one.status.score),
    )  # fmt: skip


def _score(shown: Score | None) -> Ranking | None:
    """Returns the score that the status shows, without weights; None: it shows none, or one that does not read."""
    if shown is None or not shown.total:
        return None
    try:
        return Ranking(total=float(shown.total), terms={name: float(value) for name, value in shown.terms.items()})
    except ValueError:
        return None  # no daemon of this release wrote it


def _with_weights(console: Console, one: Allocation, answer: Why) -> Why:
    """Returns the answer with the vcluster's weights, and the budget's multiplier that follows from them, added to a score from the status;
    unchanged where they are there already or cannot be read.
    """
    score = answer.score
    if score is None or score.weights or not score.terms:
        return answer
    try:
        vcluster = console.cluster.get(VCLUSTERS, one.spec.vcluster, type=VCluster)
    except LatticeError:
        return answer
    weights = {camel(name): weight for name, weight in asdict(weights_of(vcluster.spec)).items()}
    points = sum(value * weight for value, weight in zip(score.terms.values(), weights.values(), strict=False))
    multiplier = min(1.0, round(score.total / points, 3)) if points else 1.0
    near = abs(points - score.total) < _ROUNDING
    return msgspec.structs.replace(answer, score=msgspec.structs.replace(score, weights=weights, multiplier=1.0 if near else multiplier))


def next_step(reason: str, name: str, message: str = "") -> str:
    """Returns what the person can do next for a reason, as a command where it is one; empty: no step is known."""
    if IN_ORDER in message:
        return "wait: the order of submission decides there, and no class or score changes it"
    beyond = BEYOND_LIMIT in message
    step = "`lattice cancel`, and ask for less, or for a higher limit" if beyond else _NEXT.get(reason, "")
    for verb in _NAMED_VERBS:
        step = step.replace(f"`lattice {verb}`", f"`lattice {verb} {name}`")
    return step


def _with_scheduler(console: Console, one: Allocation, answer: Why, seconds: float) -> Why:
    """Returns the answer with the scheduler's part; where it cannot be asked, with since when it is silent, or why."""
    lead = leadership(console)
    silence = Silence(message=lead.sentence, silent_since=lead.silent_since or None) if lead.sentence else None
    if answer.phase != PENDING:
        return msgspec.structs.replace(answer, scheduler=silence)
    path = f"/v1/why/{quote(one.metadata.namespace, safe='')}/{quote(one.metadata.name, safe='')}"
    try:
        said = msgspec.json.decode(ask(console, path, seconds=seconds), type=Why)
    except NotFound as error:
        if error.reason == "NotPending":
            return msgspec.structs.replace(answer, scheduler=silence)
        return msgspec.structs.replace(answer, scheduler=silence or Silence(message=error.message))
    except (LatticeError, msgspec.DecodeError) as error:
        return msgspec.structs.replace(answer, scheduler=silence or Silence(message=f"only the object was asked: {error}"))
    return _join(answer, said)


def _join(answer: Why, said: Why) -> Why:
    """Returns the scheduler's answer completed by what only the object knows: its phase, and since when the reason holds where both name
    the same; the scheduler's reason is the newer one.
    """
    same = said.reason == answer.reason
    return msgspec.structs.replace(
        said,
        phase=answer.phase,
        since=answer.since if same or said.since is None else said.since,
        next_step=next_step(said.reason, str(said.allocation.number or said.allocation.name), said.message),
        message=said.message or answer.message,
    )


def sentences(name: str, answer: Why, now: float, width: int = 0) -> list[str]:
    """Returns the lines of the answer for people."""
    when = f" since {answer.since} ({age(answer.since, now)})" if answer.since else ""
    lines = [f"Allocation {name} ({answer.allocation.namespace}/{answer.allocation.name}) is {answer.phase}{when}"]
    lines.append(f"  {answer.reason}: {answer.message}" if answer.message else f"  {answer.reason}")
    told = fields(
        [
            ("Steps", "\n".join(answer.steps)),
            ("Queue", position_sentence(answer.queue)),
            ("Expected start", expected_sentence(answer.expected_start, now)),
            ("Reservation", reservation_sentence(answer.reservation, now)),
            ("Score", "\n".join(score_lines(answer.score)) if answer.phase not in FINAL_PHASES else ""),
            ("Would preempt", "\n".join(preemption_lines(answer.preemption))),
        ],
        max(0, width - 2),
    )
    lines += [f"  {line}" for line in told]
    if answer.blockers:
        lines += ["  Before it, in order:", *(f"    {line}" for line in blocker_table(answer.blockers, now, max(0, width - 4)))]
    if answer.changes:
        lines += ["  It would start now with:", *(f"    {line}" for line in change_lines(answer.changes))]
    if answer.next_step:
        lines.append(f"  Next: {answer.next_step}")
    if answer.scheduler is not None:
        lines.append(f"  But {answer.scheduler.message}")
    return [part for line in lines for part in hang(line, width)]
