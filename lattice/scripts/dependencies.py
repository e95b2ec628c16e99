"""Reads what work depends on: `--dependency` as sbatch writes it, and Lattice's own `--depends-on REF:CONDITION,…`.

| Slurm | Lattice |
|---|---|
| `afterok:N`, `afternotok:N` | Success, Failure |
| `afterany:N`, `afterburstbuffer:N`, `N` alone | Any |
| `after:N`, `after:N+5` | Started, with a delay of 5 minutes |
| `singleton` | Mutex of the job's name |
| `,` between them, `?` | all of them, the first of them |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from lattice.errors import Rejected
from lattice.scripts.asked import Asked, Given
from lattice.units import format_duration, is_digits, parse_duration
from lattice.workflow.mutexes import MUTEX, is_mutex_name, mutex_of_job
from lattice.workflow.references import parse_reference

MOST_EDGES: Final = 1000
_TYPES: Final = {"after": "Started", "afterany": "Any", "afterburstbuffer": "Any", "afternotok": "Failure", "afterok": "Success"}
_REFUSED: Final = {
    "aftercorr": "task groups are not served by this release",
    "expand": "work is not expanded by other work",
}
_CONDITIONS: Final = {"success": "Success", "failure": "Failure", "any": "Any", "started": "Started", "mutex": "Mutex"}
_LATER: Final = {"corresponding": "task groups"}
_UNMET: Final = {"yes": "Cancel", "no": "Hold", "cancel": "Cancel", "hold": "Hold"}
_SEPARATED: Final = re.compile(r"[,?]")
Edge = dict[str, str]


def read_dependencies(asked: Asked) -> dict[str, Any]:
    """Returns the fields of a spec that say on what work depends; empty where nothing is asked.

    Raises Rejected, with the place of the option, for what does not read or is not served.
    """
    spec: dict[str, Any] = {}
    given = asked.get("depends-on")
    if given is not None:
        text = (given.value or "").strip()
        if "," in text and "?" in text:
            raise given.rejected("`,` (all of them) and `?` (the first of them) cannot be mixed: use one of them", "DependencyInvalid")
        job = asked["name"].value or "" if "name" in asked else ""
        read = partial(_of_slurm, job) if given.option == "dependency" else _of_lattice
        edges = {(edge["ref"], edge["condition"]): edge for item in _SEPARATED.split(text) for edge in read(item.strip(), given)}
        if "?" in text and any(edge["condition"] == MUTEX for edge in edges.values()):
            raise given.rejected("a mutex (singleton) is always needed: join it by `,`, not by `?`", "DependencyInvalid")
        if len(edges) > MOST_EDGES:
            raise given.rejected(f"it names {len(edges)} edges (limit: {MOST_EDGES})", "DependencyInvalid")
        spec["dependsOn"] = list(edges.values())
        if "?" in text:
            spec["dependsOnMode"] = "Any"
    unmet = asked.get("on-unmet")
    if unmet is not None:
        word = (unmet.value or "").strip().lower()
        if word not in _UNMET:
            known = "yes or no" if unmet.option == "kill-on-invalid-dep" else "cancel or hold"
            raise unmet.rejected(f"{unmet.value!r} is not {known}")
        if given is not None:
            spec["onUnmet"] = _UNMET[word]
    return spec


def _of_slurm(job: str, item: str, given: Given) -> Iterator[Edge]:
    """Yields the edges of one item of `--dependency`: `TYPE:NUMBER[+MINUTES][:NUMBER…]`, a number alone, or `singleton`.

    `job`: the job's name.
    """
    kind, *numbers = item.split(":")
    if is_digits(kind) and not numbers:
        kind, numbers = "afterany", [kind]
    kind = kind.lower()
    if kind == "singleton":
        if numbers:
            raise given.rejected(f"{item!r}: singleton names no work: write singleton", "DependencyInvalid")
        yield {"ref": mutex_of_job(job), "condition": MUTEX}
        return
    if kind in _REFUSED:
        raise given.rejected(f"{kind}: {_REFUSED[kind]}", "NotServed")
    if kind not in _TYPES:
        raise given.rejected(f"{item!r} is no dependency: write for example afterok:12345", "DependencyInvalid")
    if not numbers or not all(numbers):
        raise given.rejected(f"{item!r} names no work: is a variable unset?", "DependencyInvalid")
    for text in numbers:
        ref, plus, minutes = text.partition("+")
        if plus and (kind != "after" or not is_digits(minutes, 6)):
            raise given.rejected(f"{text!r}: a delay is of `after` alone, in minutes: after:12345+5", "DependencyInvalid")
        yield _edge(ref, _TYPES[kind], format_duration(60.0 * int(minutes)) if plus else "", given)


def _of_lattice(item: str, given: Given) -> Iterator[Edge]:
    """Yields the edge of one item of `--depends-on`: `REF[:CONDITION[+DELAY]]`; without a condition it is Success."""
    ref, colon, rest = item.partition(":")
    word, plus, delay = rest.partition("+")
    if word.lower() in _LATER:
        raise given.rejected(f"{word}: {_LATER[word.lower()]} are not served by this release", "NotServed")
    if colon and word.lower() not in _CONDITIONS:
        raise given.rejected(f"{word!r} is none of {', '.join(_CONDITIONS)}", "DependencyInvalid")
    if plus:
        try:
            parse_duration(delay)
        except Rejected as error:
            raise given.rejected(error.message, error.reason) from error
    yield _edge(ref, _CONDITIONS.get(word.lower(), "Success"), delay, given)


def _edge(ref: str, condition: str, delay: str, given: Given) -> Edge:
    """Returns one edge as the spec has it. Raises Rejected for a reference that does not read, or is not served."""
    if condition == MUTEX:
        if delay or not is_mutex_name(ref):
            why = "has no delay" if delay else "has a name of small letters, digits and dashes, 63 at most, and no number"
            raise given.rejected(f"{ref!r}: a mutex {why}", "DependencyInvalid")
        return {"ref": ref, "condition": condition}
    try:
        parse_reference(ref, "")
    except Rejected as error:
        raise given.rejected(error.message, error.reason) from error
    return {"ref": ref, "condition": condition} | ({"delay": delay} if delay else {})
