"""Traces as JSON lines, the event log of the book ("Using RM-Replay"): reads lines into jobs, and writes jobs as lines.

One object a line, with a `type`: `submit`, `start`, `complete` and `cancel` are of one allocation, named by `alloc_id`; `nodes`,
`tenant` and `vcluster` say the machine and its rules; `trace` opens a captured file. A type that is not of this list, a field that
is not known and an end without a start are errors with the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from lattice.errors import Rejected
from lattice.replay.jobs import Log, TenantTerms, TraceJob
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.work import ANY, IGNORED, PREFERRED, REQUIRED, SPREAD, TIGHT
from lattice.units import (
    expand_nodes,
    format_bytes,
    format_duration,
    format_time,
    parse_duration,
    parse_node_count,
    parse_time,
    quantity_bytes,
)

FORMAT: Final = 1
"""The number of this format, with which a captured trace begins."""
_TOPOLOGIES: Final = {word.lower(): word for word in (ANY, TIGHT, SPREAD)}
_CONFORMANCES: Final = {word.lower(): word for word in (PREFERRED, REQUIRED, IGNORED)}
_EARLIEST: Final = 0.0
_NAMELESS: Final = "line-"
"""The id of a submission without one begins with this; the number of its line follows."""


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", kw_only=True):
    ts: str = ""


class _Alloc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request in the trace; the book's names, `priority` is the preemption class."""

    nodes: int | str | dict[str, int]
    id: str = ""
    walltime: str | float | None = None
    tenant: str = "default"
    user: str = ""
    vcluster: str = "default"
    name: str = ""
    priority: int | None = None
    preemption_class: int | None = None
    cpus: int = 0
    memory: int | str = 0
    gpus: int = 0
    gpu_type: str = ""
    gpu_memory: int | str = 0
    unified_memory: bool = False
    allow_cxl_memory: bool = False
    features: tuple[str, ...] = ()
    node_list: str = ""
    exclude_nodes: str = ""
    topology: str = "any"
    conformance: str = "preferred"
    grace_period: str | float = 30.0
    checkpoint: str = "auto"
    preemptible: bool = True
    sensitive: bool = False


class _Submit(_Line, frozen=True, tag="submit", kw_only=True):
    alloc: _Alloc
    alloc_id: str = ""


class _Start(_Line, frozen=True, tag="start", kw_only=True):
    alloc_id: str
    nodes: str = ""


class _Complete(_Line, frozen=True, tag="complete", kw_only=True):
    alloc_id: str
    duration: str | float | None = None
    exit: int | None = None


class _Cancel(_Line, frozen=True, tag="cancel", kw_only=True):
    alloc_id: str


class _NodesLine(_Line, frozen=True, tag="nodes", kw_only=True):
    classes: dict[str, Any]
    nodes: list[Any]


class _Tenant(_Line, frozen=True, tag="tenant", kw_only=True):
    name: str
    share: float | None = None
    max_nodes: int | None = None
    max_allocations: int | None = None


class _VCluster(_Line, frozen=True, tag="vcluster", kw_only=True):
    name: str
    settings: dict[str, Any]


class _Trace(_Line, frozen=True, tag="trace", kw_only=True):
    format: int
    missing: str = ""


_Event = _Submit | _Start | _Complete | _Cancel | _NodesLine | _Tenant | _VCluster | _Trace
TYPES: Final = ("submit", "start", "complete", "cancel", "nodes", "tenant", "vcluster", "trace")
_QUOTED: Final = re.compile("`([^`]+)`")
_DECODER: Final[msgspec.json.Decoder[_Event]] = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class _Life:
    """The events of one allocation in the trace, each with its line; matched to its submission when all lines are read."""

    line: int
    at: float
    alloc: _Alloc
    start: tuple[int, float] | None = None
    end: tuple[int, float, float | None] | None = None
    """(line, time, duration in seconds or None) of its `complete`."""
    exit: int | None = None
    cancel: tuple[int, float] | None = None


@dataclass
class _EventsReader:
    log: Log = field(default_factory=lambda: Log("jsonl"))
    lives: dict[str, _Life] = field(default_factory=dict)
    later: list[tuple[int, _Start | _Complete | _Cancel]] = field(default_factory=list)
    """Starts, ends and cancellations with their lines, matched when all is read, since lines need not be in order."""

    def read_line(self, at: int, text: bytes) -> None:
        """Reads one line into the log; starts, ends and cancellations are kept until all jobs are known.

        Raises Rejected, with the line, where it is wrong or says something twice (several starts are allowed).
        """
        event = _decode(at, text)
        match event:
            case _Submit():
                self._submit(at, event)
            case _Start() | _Complete() | _Cancel():
                self.later.append((at, event))
            case _NodesLine():
                if self.log.inventory is not None:
                    raise _bad(at, "type", "a second line of nodes: a trace has one machine")
                self.log.inventory = {"classes": event.classes, "nodes": event.nodes}
            case _Tenant():
                self._tenant(at, event)
            case _VCluster():
                if event.name in self.log.vclusters:
                    raise _bad(at, "name", f'vcluster "{event.name}" stands already above')
                self.log.vclusters[event.name] = event.settings
            case _Trace():
                if event.format != FORMAT:
                    raise _bad(at, "format", f"format {event.format} of traces is not known, this program reads format {FORMAT}")
                self.log.missing = event.missing

    def _submit(self, at: int, event: _Submit) -> None:
        """Notes a job that is submitted; one without a name is named by its line.

        Raises Rejected, with the line, for a name given before, two different names, or a time before 1970.
        """
        name = event.alloc_id or event.alloc.id or f"{_NAMELESS}{at}"
        if event.alloc_id and event.alloc.id and event.alloc_id != event.alloc.id:
            raise _bad(at, "alloc.id", f"{event.alloc.id!r} is not the alloc_id {event.alloc_id!r} of the same line")
        if name in self.lives:
            raise _bad(at, "alloc_id", f"{name!r} was submitted already in line {self.lives[name].line}")
        self.lives[name] = _Life(at, _time(at, event.ts), event.alloc)

    def _tenant(self, at: int, event: _Tenant) -> None:
        """Notes the terms of a tenant. Raises Rejected, with the line, for a tenant given before or a number out of bounds."""
        if event.name in self.log.tenants:
            raise _bad(at, "name", f'tenant "{event.name}" stands already above')
        if event.share is not None and not 0 <= event.share <= 1:
            raise _bad(at, "share", f"{event.share:g} is no share between 0 and 1")
        for name in ("max_nodes", "max_allocations"):
            if (getattr(event, name) or 0) < 0:
                raise _bad(at, name, f"{getattr(event, name)} is negative")
        self.log.tenants[event.name] = TenantTerms(event.share, event.max_nodes, event.max_allocations)

    def _nameless(self) -> str:
        """Returns a hint for an error where a submission has no id, so that no other line can belong to it; else empty."""
        nameless = next((name for name in self.lives if name.startswith(_NAMELESS)), None)
        return "" if nameless is None else f' (line {self.lives[nameless].line} submits without an "alloc_id")'

    def finish(self) -> Log:
        """Returns the log of all jobs, with the events that were kept matched to them; jobs that cannot be replayed are counted, not in it.

        Raises Rejected, with the line, for an event that does not match, and where no job is left.
        """
        for at, event in self.later:
            self._match(at, event)
        self.log.total = len(self.lives)
        for name, life in self.lives.items():
            job = _job(name, life, self.log)
            if job is not None:
                self.log.jobs.append(job)
        return self.log.settle()

    def _match(self, at: int, event: _Start | _Complete | _Cancel) -> None:
        """Notes a start, an end or a cancellation with its job; of several starts the latest counts, of several cancellations the last in
        the file.

        Raises Rejected, with the line, where there is no such job, the time is before the submission, or it completed already.
        """
        life = self.lives.get(event.alloc_id)
        kind = event.__class__.__name__.removeprefix("_").lower()
        if life is None:
            raise _bad(at, "alloc_id", f"{kind} of {event.alloc_id!r}, which no line submits{self._nameless()}")
        time = _time(at, event.ts)
        if time < life.at:
            raise _bad(at, "ts", f"{event.alloc_id!r} has its {kind} before its submit in line {life.line}")
        if isinstance(event, _Cancel):
            life.cancel = (at, time)
        elif isinstance(event, _Start):
            if life.start is None or time > life.start[1]:
                life.start = (at, time)  # of several attempts the last one counts
        elif life.end is not None:
            raise _bad(at, "alloc_id", f"{event.alloc_id!r} completed already in line {life.end[0]}")
        else:
            life.end = (at, time, None if event.duration is None else _seconds(at, "duration", event.duration))
            life.exit = event.exit


def read(lines: Iterable[bytes]) -> Log:
    """Returns the log of a trace; raises Rejected (`BadTrace`) at the first line that is not valid, and where no job is left to replay."""
    reader = _EventsReader()
    for at, text in enumerate(lines, start=1):
        if text.strip():
            reader.read_line(at, text)
    return reader.finish()


def _decode(at: int, text: bytes) -> _Event:
    """Returns the event of a line. Raises Rejected, with line and field, where it is none."""
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError as error:
        sentence, _, place = str(error).partition(" - at ")
        name = place.strip("`").removeprefix("$.") or (_QUOTED.findall(sentence) or ["type"])[-1]
        if name == "type":
            sentence += f": types are {', '.join(TYPES)}"
        elif name == "alloc" and "unknown field" in sentence:
            sentence += f": its fields are {', '.join(_Alloc.__struct_fields__)}"
        raise _bad(at, name, sentence) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = ""
        if at == 1 and text.startswith(b"{") and not text.rstrip().endswith(b"}"):
            hint = "; a trace has one object a line (Slurm's accounting is read as sacct -P prints it, not as --json)"
        raise Rejected(f"line {at} is no JSON object: {error}{hint}", reason="BadTrace") from error


def _job(name: str, life: _Life, log: Log) -> TraceJob | None:
    """Returns the job of an allocation; None where it cannot be replayed (no end, no run time), which is counted. A job cancelled while it
    waited counts with its walltime as its run.

    Raises Rejected where a field is not valid.
    """
    alloc, at = life.alloc, life.line
    low, high = _nodes(at, alloc.nodes)
    walltime = None if alloc.walltime is None else _seconds(at, "alloc.walltime", alloc.walltime)
    if walltime is not None and walltime <= 0:
        raise _bad(at, "alloc.walltime", f"{_shown(alloc.walltime)} is no time to run")
    run = _run_of(name, life)
    withdrawn = life.cancel[1] if life.cancel is not None and life.start is None and run is None else None
    job = TraceJob(
        id=name, submit=life.at, nodes=low, most=high, run=(walltime or 0.0) if run is None else run, walltime=walltime,
        tenant=alloc.tenant, user=alloc.user, vcluster=alloc.vcluster, name=alloc.name, preemption_class=_class(at, alloc),
        need=_need(at, alloc), only=_set(at, "alloc.node_list", alloc.node_list),
        without=_set(at, "alloc.exclude_nodes", alloc.exclude_nodes), grace=_seconds(at, "alloc.grace_period", alloc.grace_period),
        topology=_word(at, "alloc.topology", alloc.topology, _TOPOLOGIES),
        conformance=_word(at, "alloc.conformance", alloc.conformance, _CONFORMANCES),
        checkpointable=alloc.checkpoint.lower() != "none", preemptible=alloc.preemptible, sensitive=alloc.sensitive,
        withdrawn=withdrawn, started=None if life.start is None else life.start[1], exit=life.exit,
        line=at,
    )  # fmt: skip
    if run is None and withdrawn is None:
        log.left.note("that did not end in the trace", at)
        return None
    if job.run <= 0:
        log.left.note("without a run time", at)
        return None
    return job


def _run_of(name: str, life: _Life) -> float | None:
    """Returns how long an allocation ran, in seconds: the duration of its `complete`, else from its start to its end or cancel; None: it
    has neither an end, nor both a start and a cancel.

    Raises Rejected where it ends without or before its start.
    """
    if life.end is None:
        return life.cancel[1] - life.start[1] if life.cancel is not None and life.start is not None else None
    at, time, duration = life.end
    if duration is not None:
        return duration
    if life.start is None:
        raise _bad(at, "duration", f"{name!r} completes without a start: neither its duration nor a line of its start is there")
    if time < life.start[1]:
        raise _bad(at, "ts", f"{name!r} completes before its start in line {life.start[0]}")
    return time - life.start[1]


def _nodes(at: int, value: int | str | dict[str, int]) -> tuple[int, int]:
    """Returns the least and the most nodes from a number or a range. Raises Rejected, with the line, where it does not parse."""
    if isinstance(value, dict):
        if set(value) != {"min", "max"}:
            raise _bad(at, "alloc.nodes", 'a range is {"min": 32, "max": 128}')
        value = f"{value['min']}-{value['max']}"
    try:
        return parse_node_count(value)
    except Rejected as error:
        raise _bad(at, "alloc.nodes", error.message) from error


def _class(at: int, alloc: _Alloc) -> int:
    """Returns a job's preemption class (`preemption_class` before `priority`), 5 where neither is given.

    Raises Rejected, with the line, where it is outside 0 to 10.
    """
    given = alloc.preemption_class if alloc.preemption_class is not None else alloc.priority
    if given is None:
        return 5
    if not 0 <= given <= 10:
        raise _bad(at, "alloc.priority", f"{given} is no preemption class from 0 to 10")
    return given


def _need(at: int, alloc: _Alloc) -> Need:
    """Returns what a job asks of each node. Raises Rejected, with the line, where a number is negative or does not parse."""
    for name in ("cpus", "gpus"):
        if getattr(alloc, name) < 0:
            raise _bad(at, f"alloc.{name}", f"{getattr(alloc, name)} is negative")
    return Need(
        cpus=alloc.cpus,
        memory=_bytes(at, "alloc.memory", alloc.memory),
        gpus=alloc.gpus,
        features=frozenset(alloc.features),
        gpu_type=alloc.gpu_type,
        gpu_memory=_bytes(at, "alloc.gpu_memory", alloc.gpu_memory),
        unified=alloc.unified_memory,
        allow_cxl=alloc.allow_cxl_memory,
    )


def _set(at: int, name: str, text: str) -> str:
    """Returns a node set's text unchanged. Raises Rejected, with the line, where it does not parse."""
    try:
        expand_nodes(text)
    except Rejected as error:
        raise _bad(at, name, error.message) from error
    return text


def _bytes(at: int, name: str, value: int | str) -> int:
    """Returns a quantity in bytes. Raises Rejected, with the line, where it does not parse."""
    try:
        return quantity_bytes(value)
    except Rejected as error:
        raise _bad(at, name, error.message) from error


def _word(at: int, name: str, value: str, known: dict[str, str]) -> str:
    """Returns the known word that a value means, whatever its case. Raises Rejected, with the line, for any other."""
    found = known.get(value.lower())
    if found is None:
        raise _bad(at, name, f"{value!r} is none of {', '.join(known)}")
    return found


def _seconds(at: int, name: str, value: str | float) -> float:
    """Returns a length of time in seconds, from a number or a duration's text. Raises Rejected, with the line, where it is none."""
    try:
        seconds = parse_duration(value) if isinstance(value, str) else float(value)
    except Rejected as error:
        raise _bad(at, name, error.message) from error
    if not 0 <= seconds < 1e12:
        raise _bad(at, name, f"{_shown(value)} is no length of time")
    return seconds


def _shown(value: str | float | None) -> str:
    """Returns a value as text, a fraction as short as possible."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _time(at: int, text: str) -> float:
    """Returns a time in seconds since the epoch. Raises Rejected, with the line, where it does not parse or is before 1970."""
    try:
        time = parse_time(text)
    except Rejected as error:
        raise _bad(at, "ts", error.message) from error
    if time < _EARLIEST:
        raise _bad(at, "ts", f"{text!r} is before 1970")
    return time


def _bad(at: int, name: str, what: str) -> Rejected:
    """Returns the error that says what is wrong with a field of a line."""
    return Rejected(f"line {at}: {name}: {what}", reason="BadTrace", fields=(name,))


# Writing


def lines_of(log: Log) -> Iterator[str]:
    """Yields a log as JSON lines, of which `read` makes the same jobs: first the machine and its rules, then each job's events.

    A job that had not ended has no end, so that `read` leaves it out.
    """
    yield _text({"type": "trace", "format": FORMAT, **({"missing": log.missing} if log.missing else {})})
    if log.inventory is not None:
        yield _text({"type": "nodes", **log.inventory})
    for name, terms in log.tenants.items():
        promised = {"share": terms.share, "max_nodes": terms.max_nodes, "max_allocations": terms.max_allocations}
        yield _text({"type": "tenant", "name": name, **{key: value for key, value in promised.items() if value is not None}})
    for name, settings in log.vclusters.items():
        yield _text({"type": "vcluster", "name": name, "settings": settings})
    for job in log.jobs:
        yield _text({"ts": _moment(job.submit), "type": "submit", "alloc_id": job.id, "alloc": _asked(job)})
        yield from (_text({"ts": _moment(at), "type": kind, "alloc_id": job.id, **more}) for kind, at, more in _life_of(job, log))


def _life_of(job: TraceJob, log: Log) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yields (type, time, further fields) of the events of a job after its submission: its start where it has one, then its withdrawal or
    its end; no end for one that had not ended.
    """
    if job.started is not None:
        yield "start", job.started, {}
    if job.withdrawn is not None:
        yield "cancel", job.withdrawn, {}
    elif job.id not in log.open:
        exit_code = {} if job.exit is None else {"exit": job.exit}
        yield "complete", (job.submit if job.started is None else job.started) + job.run, {"duration": _duration(job.run), **exit_code}


def _asked(job: TraceJob) -> dict[str, Any]:
    """Returns the `alloc` object of a job's submission, without fields that have their default."""
    need = job.need
    every: dict[str, tuple[Any, Any]] = {
        "walltime": (None if job.walltime is None else _duration(job.walltime), None),
        "user": (job.user, ""),
        "name": (job.name, ""),
        "cpus": (need.cpus, 0),
        "memory": (format_bytes(need.memory), "0"),
        "gpus": (need.gpus, 0),
        "gpu_type": (need.gpu_type, ""),
        "gpu_memory": (format_bytes(need.gpu_memory), "0"),
        "unified_memory": (need.unified, False),
        "allow_cxl_memory": (need.allow_cxl, False),
        "features": (sorted(need.features), []),
        "node_list": (job.only, ""),
        "exclude_nodes": (job.without, ""),
        "topology": (job.topology.lower(), ANY.lower()),
        "conformance": (job.conformance.lower(), PREFERRED.lower()),
        "grace_period": (_duration(job.grace), "30s"),
        "checkpoint": ("auto" if job.checkpointable else "none", "auto"),
        "preemptible": (job.preemptible, True),
        "sensitive": (job.sensitive, False),
    }
    nodes: int | str = job.nodes if job.most in (0, job.nodes) else f"{job.nodes}-{job.most}"
    asked: dict[str, Any] = {"nodes": nodes, "tenant": job.tenant, "vcluster": job.vcluster, "priority": job.preemption_class}
    return asked | {name: value for name, (value, default) in every.items() if value != default}


def _duration(seconds: float) -> str | float:
    """Returns whole seconds as a duration's text, others as a number."""
    return format_duration(seconds) if seconds == round(seconds) else seconds


def _moment(seconds: float) -> str:
    """Returns a time as text, to the microsecond where it is no whole second."""
    return format_time(seconds, micro=seconds != int(seconds))


def _text(obj: dict[str, Any]) -> str:
    """Returns an object as one line of JSON."""
    return msgspec.json.encode(obj).decode()
