"""Replays a trace through the production cycle, once a profile; writes reports, CSV and pictures, and compares the profiles."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lattice.cli import exits
from lattice.cli.files import read_file, write_whole
from lattice.cli.replay.counts import nodes_missing, say_what_was_left_out
from lattice.cli.replay.flags import RUN_TIME
from lattice.errors import Rejected
from lattice.inventory import MOST_NODES, Inventory, read_inventory
from lattice.replay import events, sacct
from lattice.replay.comparison import check_report, summary
from lattice.replay.jobs import Log
from lattice.replay.measures import Measures, Replayed, measure
from lattice.replay.plain import alike, jobs_of
from lattice.replay.production import Setting, fit, replay
from lattice.replay.profiles import Profile, base_policy, read_profile, read_settings, with_settings
from lattice.replay.swf import parse
from lattice.replay.table import rows
from lattice.replay.workload import Machine
from lattice.scheduling.conversion.facts import facts_of_inventory
from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.model.policy import Policy
from lattice.units import is_digits, parse_duration

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.cli.replay.progress import Progress

_LONGEST: Final = 64 * 1024 * 1024
_FILES: Final = frozenset({".json", ".yaml", ".yml", ".csv", ".txt", ".svg", ".png", ".jsonl"})
"""Suffixes of files, which no result folder has."""


@dataclass(frozen=True)
class SimulatedCluster:
    """The nodes of the replay, and the names of vclusters that have a home among them."""

    nodes: Sequence[NodeFacts]
    homes: frozenset[str]


def run(console: Console, form: str, lines: Iterable[bytes], progress: Progress, path: str | None) -> int:
    """Reads everything, replays once a profile, writes the files, prints the report, and returns DONE, SOME_FAILED where a job never
    started; nothing is printed before all of that is done, notes and warnings aside.

    Raises Rejected for flags, files or a trace that cannot be used.
    """
    args = console.args
    profiles = _profiles(args.weights or [])
    target = _target(args.target_wait)
    base = None if args.baseline is None else _baseline(args.baseline)
    folder = None if path is None else _folder(path, args.trace)
    log = _read(console, form, lines, profiles)
    site = _site(args.nodes, log)
    log = fit(log, site.nodes)
    _say(console, log, profiles)
    results = []
    for number, profile in enumerate(profiles):
        setting = Setting(site.nodes, policies(log, site, profile, args.profile or "", args.depth))
        show = _progress_callback(progress, number, len(profiles), len(log.jobs))
        done = replay(log, setting, show)
        results.append((done, _measure(profile.name, done, log, target)))
    progress.close()
    documents = [measures.document() for _, measures in results]
    if folder is not None:
        _write(console, folder, results, base)
    _print(console, documents, base)
    return exits.SOME_FAILED if any(_warn_of_stuck(console, done, measures.name) for done, measures in results) else exits.DONE


def _progress_callback(progress: Progress, number: int, count: int, jobs: int) -> Any:
    """Returns a function that shows how far replay `number` (from 0) of `count` is, from the number of jobs that have been submitted."""
    return lambda done: progress.show("replaying", (number + done / jobs) / count)


def _measure(name: str, done: Replayed, log: Log, target: float | None) -> Measures:
    """Returns the measures of a replay. Raises Rejected, with the reason, where no job started at all."""
    if not done.ran:
        _, reason, message = done.stuck[0] if done.stuck else (None, "Withdrawn", "all were withdrawn while they waited")
        raise Rejected(f"{name}: no job started at all; the first waits with {reason}: {message}", reason="BadTrace")
    return measure(name, done, log.tenants, target)


# What goes in


def _profiles(paths: Sequence[str]) -> list[Profile]:
    """Returns the profiles of these files, named by the file without suffix; without a file, one that changes nothing.

    Raises Rejected for two of one name.
    """
    found: list[Profile] = []
    for path in paths:
        name = Path(path).stem
        if any(profile.name == name for profile in found):
            raise Rejected(f"--weights={path}: a profile {name!r} is given already: name the files differently", reason="BadInput")
        found.append(replace(read_profile(_text(path), path), name=name))
    return found or [Profile("default", {})]


def _text(path: str) -> str:
    """Returns the text of a file. Raises Rejected where it is too long or not UTF-8."""
    data = read_file(path, _LONGEST)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Rejected(f"{path} is not UTF-8: byte {error.start + 1} is wrong", reason="BadInput") from error


def _target(text: str | None) -> float | None:
    """Returns the target wait in seconds; None where none is given. Raises Rejected where it does not parse."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except Rejected as error:
        raise Rejected(f"--target-wait: {error.message}", reason=error.reason) from error


def _baseline(text: str) -> Mapping[str, Any]:
    """Returns the report of a file, or the report.json of a folder. Raises Rejected where it does not parse or is no report."""
    path = Path(text)
    file = path / "report.json" if path.is_dir() else path
    try:
        return check_report(json.loads(_text(str(file))), str(file))
    except json.JSONDecodeError as error:
        raise Rejected(f"{file} is no JSON: {error}", reason="BadReport") from error


def _folder(path: str, trace: str) -> Path:
    """Returns the folder to write into, which need not exist and is not made.

    Raises Rejected where the path is a file, or looks like one by its suffix (not with / at its end).
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        what = "is the trace" if folder.resolve() == Path(trace).resolve() else "is a file"
        raise Rejected(f"-o {path} {what}: name a folder for report.json, jobs.csv and plots, or a format", reason="BadInput")
    if not folder.exists() and folder.suffix in _FILES and not path.endswith("/"):
        raise Rejected(
            f"-o {path} looks like a file, and a replay writes a folder: leave {folder.suffix} out, or print with -o json and send that "
            "to a file",
            reason="BadInput",
        )
    return folder


def _read(console: Console, form: str, lines: Iterable[bytes], profiles: Sequence[Profile]) -> Log:
    """Returns the log of a trace in the given format (`jsonl`, `sacct`, else SWF); says what of an SWF trace was left out.

    Raises Rejected where it does not parse, or the number of nodes is missing for SWF.
    """
    args = console.args
    if form == "jsonl":
        return events.read(lines)
    if form == "sacct":
        return sacct.read(lines, sacct.Translation(_zone(args.time_zone), _classes(args.class_of or [])))
    trace = parse(lines)
    if args.nodes is None:
        raise nodes_missing(trace)
    machine = _counted(args.nodes, args.procs_per_node or 1)
    vcluster, stands_in = args.vcluster or _only_vcluster(profiles), args.missing_estimates == RUN_TIME
    log, left = jobs_of(trace, machine, vcluster, run_stands_in=stands_in)
    say_what_was_left_out(console, trace, machine, left)
    return log


def _only_vcluster(profiles: Sequence[Profile]) -> str:
    """Returns the vcluster for a log that names none: the one that the profiles name, else `default`; Rejected where they name several."""
    named = {name for profile in profiles for name in profile.vclusters}
    if len(named) > 1:
        raise Rejected(f"--vcluster is missing: the log names none, the profiles name {', '.join(sorted(named))}", reason="BadInput")
    return named.pop() if named else "default"


def _counted(nodes: int | str, procs_per_node: int) -> Machine:
    """Returns a machine of so many nodes, or of as many as an inventory file has."""
    count = nodes if isinstance(nodes, int) else len(_inventory(nodes).nodes)
    return Machine(count, procs_per_node)


def _zone(name: str | None) -> tzinfo:
    """Returns a time zone; UTC where none is given. Raises Rejected for an unknown one."""
    if name is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Rejected(f"--time-zone={name} is no time zone such as Europe/Zurich", reason="BadInput") from error


def _classes(given: Sequence[str]) -> dict[str, int]:
    """Returns preemption classes by QOS, from texts QOS=CLASS. Raises Rejected where one does not parse."""
    classes: dict[str, int] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        if not equals or not name or not is_digits(number, 3) or int(number) > 10:
            raise Rejected(f"--class-of={text}: write QOS=CLASS with a class from 0 to 10, such as urgent=8", reason="BadInput")
        classes[name] = int(number)
    return classes


def _inventory(path: str) -> Inventory:
    """Returns the inventory of a file. Raises Rejected where it does not parse."""
    return read_inventory(_text(path), path)


def _site(nodes: int | str | None, log: Log) -> SimulatedCluster:
    """Returns the nodes to replay on: those of `--nodes`, else those of the trace.

    Raises Rejected where neither names any, there are too many, or jobs are of a vcluster without nodes.
    """
    if isinstance(nodes, int):
        if nodes > MOST_NODES:
            raise Rejected(
                f"--nodes={nodes}: the production engine places on at most {MOST_NODES} nodes; --engine=counts has no such limit",
                reason="BadInput",
            )
        return SimulatedCluster(alike(nodes), frozenset())
    if nodes is not None:
        inventory = _inventory(nodes)
    elif log.inventory is not None:
        inventory = read_inventory(json.dumps(log.inventory), "the trace's machine")
    else:
        raise Rejected("--nodes is missing: a number, or an inventory; the trace says nothing of its machine", reason="BadInput")
    homes = inventory.homes()
    if all(node.vcluster for node in inventory.nodes):
        inventory.require_vclusters(sorted({job.vcluster for job in log.jobs}))
    return SimulatedCluster(facts_of_inventory(inventory), frozenset(homes))


def policies(log: Log, site: SimulatedCluster, profile: Profile, named: str, depth: int | None) -> dict[str, Policy]:
    """Returns the policy of each vcluster in the log: the book's by its name, with changes by the trace, then the profile, then flags."""
    found = {}
    for vcluster in sorted({job.vcluster for job in log.jobs}):
        policy = base_policy(vcluster, profile=named)
        policy = with_settings(policy, read_settings(vcluster, log.vclusters.get(vcluster, {})))
        policy = profile.policy(vcluster, policy)
        found[vcluster] = replace(policy, home=vcluster in site.homes, depth=policy.depth if depth is None else depth)
    return found


def _say(console: Console, log: Log, profiles: Sequence[Profile]) -> None:
    """Warns of jobs that were left out or changed, of what the trace lacks, and of profiles for vclusters without a job."""
    if log.left.counts:
        console.warn([f"{log.left.total} of {log.total} jobs left out: {', '.join(log.left.phrases())}"])
    if log.changed.counts:
        console.note(f"Note: {'; '.join(log.changed.phrases())}")
    if log.missing:
        console.warn([f"the trace is not whole: {log.missing}"])
    vclusters = {job.vcluster for job in log.jobs}
    for profile in profiles:
        console.note(*(f"Note: {note}" for note in profile.notes))
        strangers = sorted(set(profile.vclusters) - vclusters)
        if strangers:
            console.warn([f"{profile.name}: no job is in vcluster {', '.join(strangers)}; the trace has {', '.join(sorted(vclusters))}"])


# What comes out


def _write(console: Console, folder: Path, results: Sequence[tuple[Replayed, Measures]], base: Mapping[str, Any] | None) -> None:
    """Writes the files of each replay, into folders of their own where there are several; each report is written last, the one of before is
    deleted first.

    Summaries compare with `base`, or with the first of several where that is None. Raises Rejected where a file cannot be written.
    """
    first = base or (results[0][1].document() if len(results) > 1 else None)
    for done, measures in results:
        place = folder / measures.name if len(results) > 1 else folder
        try:
            place.mkdir(parents=True, exist_ok=True)
            (place / "report.json").unlink(missing_ok=True)
        except OSError as error:
            raise Rejected(f"-o: {place} cannot be written: {error.strerror}", reason="BadInput") from error
        write_whole(place / "jobs.csv", (line.encode() for line in rows(done)), "-o")
        for name, content in _pictures(console, done).items():
            write_whole(place / name, [content], "-o")
        document = measures.document()
        against = first if first is not None and first != document else None
        write_whole(place / "summary.txt", ["".join(f"{line}\n" for line in summary(document, against)).encode()], "-o")
        write_whole(place / "report.json", [(json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()], "-o")


def _pictures(console: Console, done: Replayed) -> dict[str, bytes]:
    """Returns the pictures of a replay by file name; none where they are switched off, or, with a note, where they cannot be drawn and were
    not asked for.

    Raises Rejected where they were.
    """
    wanted = console.args.plots
    if wanted == "none":
        return {}
    from lattice.replay.plots import pictures

    try:
        return pictures(done, wanted or "svg")
    except Rejected as error:
        if wanted is not None or error.reason != "NotInstalled":
            raise
        console.note(f"Note: {error.message}")
        return {}


def _print(console: Console, documents: Sequence[Mapping[str, Any]], base: Mapping[str, Any] | None) -> None:
    """Prints the reports, as documents or as summaries; each but the first is compared with `base`, or with the first where that is
    None.
    """
    if console.is_document:
        console.document(documents[0] if len(documents) == 1 else {"format": 1, "kind": "ReplayComparison", "reports": list(documents)})
        return
    first = base
    for number, document in enumerate(documents):
        if number:
            console.say("")
        console.say(*summary(document, first))
        first = first or document


def _warn_of_stuck(console: Console, done: Replayed, name: str) -> bool:
    """Warns of jobs that never started; returns whether there are any."""
    if done.stuck:
        job, reason, message = done.stuck[0]
        where = f" of line {job.line}" if job.line else ""
        console.warn([f"{name}: {len(done.stuck)} jobs never started; the first is {job.id}{where}: {reason}, {message}"])
    return bool(done.stuck)
