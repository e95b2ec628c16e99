"""Decides from the nodes' Lease reports how an attempt ended and whether it is over; used while its reporter is silent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lattice.ledger.reports import ENDED, GONE, LOST, START_FAILED, UNKNOWN_EXIT
from lattice.ledger.starting import AttemptNodeState, cut_pairs
from lattice.units import parse_duration, parse_time
from lattice.views.allocation import Allocation, Exit

REPORTER_SILENCE_SECONDS: Final = 20.0
CUT_SECONDS: Final = 2.0
"""Seconds to wait for a reporter that cannot reach another node of the attempt, since it will not learn that node's end."""
FAILED_STATES: Final = frozenset((UNKNOWN_EXIT, START_FAILED, LOST))
ENDED_BY_SIGNAL: Final = frozenset((137, 143))


def over_for_the_rest(standings: Sequence[AttemptNodeState]) -> bool:
    """Tells whether the end on some nodes must end the attempt on the others too; False where no node has a process of it left.

    A failure on any node does, and so does the end on all nodes that have a task.
    """
    if all(standing.empty for standing in standings):
        return False
    if any(standing.state in FAILED_STATES or (standing.state == ENDED and standing.detail != "0") for standing in standings):
        return True
    return all(standing.empty or standing.idle for standing in standings)


def patience_with(standings: Sequence[AttemptNodeState]) -> float:
    """Returns how many seconds to wait for the reporter's status after every node reported that no process is left.

    They are 20, and 2 where a node cannot reach another one of the attempt, whose end the reporter may then never learn.
    """
    return CUT_SECONDS if cut_pairs(standings) else REPORTER_SILENCE_SECONDS


def reported(allocation: Allocation, now: float, standings: Sequence[AttemptNodeState]) -> tuple[str, str, Exit | None]:
    """Returns reason, sentence and exit (None: unknown) of an attempt that all its nodes report ended.

    Where its exit code is known, the reason is WalltimeExceeded if the node that ended it reports so; for agents too old to report it,
    if a signal ended it after its walltime.
    """
    reason, message, ended = end_of(standings)
    if reason not in ("TaskFailed", "Completed") or ended is None:
        return reason, message, ended
    said = any(standing.at_walltime and ended.node in ("", standing.name) for standing in standings)
    if not said and not (ended.code in ENDED_BY_SIGNAL and _was_over(allocation, now, standings)):
        return reason, message, ended
    return "WalltimeExceeded", f"its walltime of {allocation.spec.lifecycle.walltime} was over; {message}", ended


def _was_over(allocation: Allocation, now: float, standings: Sequence[AttemptNodeState]) -> bool:
    """Tells whether the walltime had passed when the last node reported that no process was left.

    Without a recorded start the walltime counts from the time at which the attempt got its nodes.
    """
    start, walltime = allocation.status.start_time or allocation.status.scheduled_time, allocation.spec.lifecycle.walltime
    if start is None or not walltime:
        return False
    return now - min(standing.vouched_seconds for standing in standings) - parse_time(start) >= parse_duration(walltime)


def describe_unknown_exit(node: str) -> str:
    """Returns the sentence on work whose shim was killed on a node before the end of all its tasks was known, with the next step."""
    return (
        f"the process that keeps the exit code was killed on {node} (lattice-shim), and with it the tasks that still ran: they have no "
        f"exit code; look there for who killed it (journalctl -k, the audit log), then submit the work again"
    )


def end_of(standings: Sequence[AttemptNodeState]) -> tuple[str, str, Exit | None]:
    """Returns reason, sentence and exit from the nodes' reports: those of the first failure, else exit code 0 where all have ended, else
    Lost.

    An unknown exit counts before an exit code, and that before a failed start or a loss. The exit is None where no node tells a code.
    """
    for standing in standings:
        if standing.state == UNKNOWN_EXIT:
            return "ExitUnknown", describe_unknown_exit(standing.name), None
    for standing in standings:
        if standing.state == ENDED and standing.detail not in ("", "0"):
            code = int(standing.detail)
            return (
                "TaskFailed",
                f"exit code {code} on {standing.name}",
                Exit(code=code, signal=code - 128 if code > 128 else 0, node=standing.name),
            )
    for standing in standings:
        if standing.state == START_FAILED:
            return standing.detail or "StartFailed", f"could not be started on {standing.name}", None
        if standing.state in (LOST, GONE) or standing.fenced:
            return "Lost", f"{standing.name} has no record of it", None
    if standings and all(standing.state == ENDED for standing in standings):
        return "Completed", "every task ended with 0", Exit(code=0)
    return "Lost", "no node has a record of its end", None
