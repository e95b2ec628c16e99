"""Asks the gateway for the launches (Slurm's steps) of allocations, and has it end one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import msgspec

from lattice.cli import exits
from lattice.cli.failures import explain
from lattice.cli.find import Finder
from lattice.cli.gateway import ask, ask_document
from lattice.cli.render.launches import launch_lines
from lattice.cli.selection import split_references
from lattice.errors import LatticeError, Rejected, Retry
from lattice.launches.answers import LaunchOrderAnswer, LaunchReport, LaunchRow
from lattice.units import format_duration

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.views import Allocation

_STEP = re.compile(r"((?:[^/.]+/)?[0-9]{1,12})\.([0-9]{1,9})", re.ASCII)


def split_step(reference: str) -> tuple[str, int] | None:
    """Returns allocation and launch of `12345.3`, also behind NAMESPACE/; None for other references."""
    found = _STEP.fullmatch(reference)
    return (found[1], int(found[2])) if found is not None else None


def path_of(one: Allocation) -> str:
    """Returns the gateway's path of an allocation's launches."""
    return f"/v1/launches/{quote(one.metadata.namespace)}/{quote(one.metadata.name)}"


def show_steps(console: Console, references: Sequence[str], *, attempt: str = "", limit: str = "") -> int:
    """Shows the launches of the allocations that references name (`12`, or one alone: `12.3`), and returns the exit code of all; errors of
    single ones are printed.

    `attempt` and `limit`: as typed, empty: the newest attempt, 100 rows. Raises Rejected where nothing is named.
    """
    if not references:
        raise Rejected("--steps needs an allocation, such as 12, or one launch of it, such as 12.3", reason="BadInput")
    reports, codes = list[LaunchReport](), list[int]()
    finder = Finder(console)
    for reference in split_references(references):
        step = split_step(reference)
        found, errors = finder.find_all([step[0] if step is not None else reference])
        for one in found:
            query = {"attempt": attempt, "limit": limit, "number": str(step[1]) if step is not None else ""}
            wanted = urlencode({key: value for key, value in query.items() if value})
            try:
                reports.append(ask_document(console, f"{path_of(one)}?{wanted}", LaunchReport))
            except LatticeError as refused:
                errors.append(refused)
            else:
                codes.append(exits.DONE)
        for error in errors:
            console.complain(*explain(error))
        codes += [exits.of_error(error) for error in errors]
    if reports:
        _print(console, _joined(reports))
    return exits.of_several(codes)


def _joined(reports: Sequence[LaunchReport]) -> LaunchReport:
    """Returns one document of several."""
    rows = [row for report in reports for row in report.rows]
    return msgspec.structs.replace(reports[0], rows=rows, attempts=[part for report in reports for part in report.attempts])


def _print(console: Console, report: LaunchReport) -> None:
    """Prints launches in the wanted format."""
    if console.format in ("json", "yaml"):
        console.document(msgspec.to_builtins(report))
    elif console.format == "name":
        console.say(*(row.step for row in report.rows))
    else:
        console.say(*launch_lines(report, width=console.outside.columns, wide=console.format == "wide", color=console.color))
        console.warn([part.incomplete for part in report.attempts if part.incomplete])


def cancel_step(console: Console, reference: str, number: int) -> int:
    """Has one launch of an allocation ended, prints that, and returns the exit code; one that is over stays as it is.

    Errors are printed.
    """
    try:
        one = Finder(console).find(reference)
        body = ask(console, path_of(one), {"number": number, "reason": console.args.reason})
        answer = msgspec.json.decode(body, type=LaunchOrderAnswer)
    except msgspec.DecodeError as error:
        broken = Retry(f"the gateway answered what is no answer to a cancel: {error}", reason="AnswerBroken")
        console.complain(*explain(broken))
        return exits.of_error(broken)
    except LatticeError as error:
        console.complain(*explain(error))
        return exits.of_error(error)
    name = f"{one.status.number or one.metadata.name}.{number}"
    if answer.ending:
        grace = format_duration(answer.grace_seconds)
        console.say(f"Cancelling launch {name}: TERM now, KILL after {grace} if it is still there; the allocation goes on")
    else:
        console.note(f"Launch {name} has ended already: {_state(answer.row)}")
    return exits.DONE


def _state(row: LaunchRow | None) -> str:
    """Returns the state of a launch that is over."""
    return row.state if row is not None else "unknown"
