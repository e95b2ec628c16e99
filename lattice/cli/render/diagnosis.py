"""The page of `lattice diag` about an allocation: request, state, nodes, last lines, events. Pure; holds no value of a variable."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from lattice.cli.render.allocations import allocation_details
from lattice.cli.render.node_reports import condition_table, output_lines, report_lines
from lattice.cli.render.text import Column, age, fields, hang, memory, plural, table
from lattice.lifecycle.node_report import Diagnosis
from lattice.views import Allocation
from lattice.views.allocation import SoftwareImage

_IMAGES = (
    Column("IMAGE", shrink_to=24, cut_middle=True),
    Column("SIZE", right=True, leave=2),
    Column("MOUNT", leave=1),
    Column("DIGEST", shrink_to=20, cut_middle=True),
)
_EVENTS = (Column("SINCE", right=True), Column("TYPE", leave=1), Column("REASON"), Column("NOTE", shrink_to=30))
_SHOWN = (
    "tenant",
    "user",
    "project",
    "vcluster",
    "intent",
    "tasks",
    "resources",
    "lifecycle",
    "quota",
    "reservation",
    "data",
    "dependsOn",
    "sensitive",
)
"""Parts of a spec that are shown whole; they hold nothing that a person could have meant to keep to himself."""
_SHOWN_ENVIRONMENT = ("uenv", "image", "view", "toolsUenv", "noDefaultView", "writable", "devices", "require", "workdir", "output")


def spec_summary(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an Allocation asks for without values of variables, arguments of the command, and the script.

    Of variables and Secrets the names are left, of the command its program, of the script its number of lines.
    """
    spec = raw.get("spec") or {}
    environment = spec.get("environment") or {}
    found = {name: spec[name] for name in _SHOWN if spec.get(name)}
    shown = {name: environment[name] for name in _SHOWN_ENVIRONMENT if environment.get(name)}
    if environment.get("variables"):
        shown["variables"] = sorted(environment["variables"])
    if environment.get("variablesFrom"):
        shown["variablesFrom"] = [_secret_name(one) for one in environment["variablesFrom"]]
    if shown:
        found["environment"] = shown
    if spec.get("entrypoint"):
        found["program"] = _program(str(spec["entrypoint"]))
    if spec.get("script"):
        found["scriptLines"] = len(str(spec["script"]).splitlines())
    return found


def _secret_name(source: Mapping[str, Any]) -> str:
    """Returns the name of the Secret of a source of variables; empty where it names none."""
    reference = source.get("secretRef")
    return str(reference.get("name", "") if isinstance(reference, Mapping) else reference or "")


def _program(entrypoint: str) -> str:
    """Returns the first word of a command line that has no `=`, its program; its arguments may hold a password, and words such as
    NAME=value before it, too.

    Empty for none.
    """
    try:
        words = shlex.split(entrypoint)
    except ValueError:
        words = entrypoint.split()
    return next((word for word in words if "=" not in word), "")


def allocation_page(
    one: Allocation, spec: Mapping[str, Any], found: Diagnosis, why: Sequence[str], events: Sequence[str], *, now: float, width: int
) -> list[str]:
    """Returns the lines of the page; `spec` is its summary, `why` and `events` are lines that follow their headings."""
    lines = [*allocation_details(one, now, width=width), "", *_request(spec, width)]
    if one.status.conditions:
        lines += ["", *condition_table(one.status.conditions, now, width)]
    if one.status.software:
        lines += ["", *table(_IMAGES, [_image(image) for image in one.status.software], width=width)]
    lines += ["", *why]
    if found.nodes:
        lines += ["", f"Attempt {found.attempt} on its nodes:", *report_lines(found.nodes, now, width)]
    if found.left_out:
        lines.append(f"{plural(found.left_out, 'node')} more not asked")
    if found.output_message:
        lines += ["", *hang(f"No output: {found.output_message}", width)]
    for output in found.output:
        lines += ["", *output_lines(output)]
    return [*lines, "", *events]


def event_lines(events: Sequence[Mapping[str, Any]], unseen: str, now: float, width: int) -> list[str]:
    """Returns a line an event, the oldest first; else that there are none, or why the reader sees none (`unseen`)."""
    if not events:
        return [f"Events: {unseen or 'none'}"]
    rows = [(age(_text(one, "eventTime"), now), _text(one, "type"), _text(one, "reason"), _text(one, "note")) for one in events]
    return table(_EVENTS, rows, width=width)


def _text(one: Mapping[str, Any], name: str) -> str:
    """Returns the text of a key; empty where it is absent."""
    return str(one.get(name) or "")


def _image(image: SoftwareImage) -> tuple[str, ...]:
    """Returns the cells of one image."""
    return image.source, memory(image.size), image.mount, image.digest


def _request(spec: Mapping[str, Any], width: int) -> list[str]:
    """Returns the lines on what an allocation asks for, without what is absent."""
    environment = spec.get("environment") or {}
    words = {name: _words(value) for name, value in environment.items()}
    return fields(
        [
            ("Asks for", _words(spec.get("resources") or {})),
            ("Lifecycle", _words(spec.get("lifecycle") or {})),
            ("Tasks", _words(spec.get("tasks") or {})),
            ("Program", str(spec.get("program", ""))),
            ("Script", plural(int(spec.get("scriptLines", 0)), "line") if spec.get("scriptLines") else ""),
            ("Environment", "\n".join(f"{name} {text}" for name, text in words.items())),
            ("Quota", str(spec.get("quota", ""))),
            ("Reservation", str(spec.get("reservation", ""))),
            ("Data", _words(spec.get("data") or {})),
            ("Depends on", _words(spec.get("dependsOn") or {})),
        ],
        width,
    )


def _words(value: object) -> str:
    """Returns a part of a spec in one line: `nodes 2, constraints (features nvme)`."""
    if isinstance(value, Mapping):
        parts = (f"{name} {f'({_words(inner)})' if isinstance(inner, Mapping) else _words(inner)}" for name, inner in value.items())
        return ", ".join(parts)
    if isinstance(value, list):
        return " ".join(_words(one) for one in value)
    return str(value)
