"""`scontrol`: shows jobs, partitions, nodes and the configuration; holds, releases and changes jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from lattice.cli import exits
from lattice.cli.slurm import sayings
from lattice.cli.slurm.clock import read_moment
from lattice.cli.slurm.fetch import MIN_JOB_AGE, JobQuery, fetch_jobs
from lattice.cli.slurm.jobs import JobId, SlurmJob, parse_job
from lattice.cli.slurm.nodes import fetch_nodes, fetch_partitions, with_cpus
from lattice.cli.slurm.options import Parsed, grammar
from lattice.cli.slurm.records import config_text, job_text, node_text, partition_text
from lattice.cli.values import walltime_of
from lattice.errors import Denied, LatticeError, NotFound, Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.units import expand_nodes, fold_nodes, format_time, is_digits
from lattice.views.work import Work

if TYPE_CHECKING:
    from lattice.cli.console import Console

GRAMMAR: Final = grammar(
    "scontrol",
    switches="all details federation future hide local oneliner sibling json yaml",
    values="cluster clusters uid",
    short="a=all M=clusters d=details F=future o=oneliner Q=quiet u=uid",
    unserved=dict.fromkeys(("json", "yaml"), "`lattice status JOB -o json`, or yaml, prints all there is"),
)
WRONG_USAGE = 1
UNKNOWN: Final = "Invalid job id specified"
_NODES: Final = "nodes are changed by `lattice node drain`, `undrain`, `disable` and `enable`"
_ELSEWHERE: Final = {
    "create": "reservations are made by `lattice reservation create`",
    "delete": "reservations are deleted by `lattice reservation delete`",
    "reconfigure": "the site is configured by `lattice admin config set`, and nothing needs to be told of it",
    "reboot": _NODES,
    "suspend": "work is not suspended by this release: `scontrol requeue` ends it and puts it back in the queue",
    "resume": "work is not suspended by this release",
    "shutdown": "Lattice's programs are ended by what started them",
    "takeover": "the scheduler's leader is chosen by a Lease",
    "token": "people authenticate to the API server: `kubectl` shows how",
    "top": "the order follows from class and age: `lattice update --preemption-class`",
    "wait_job": "`lattice wait` waits for the end of work",
    "write": "`scontrol show job` and `lattice status -o yaml` show what there is",
}  # fmt: skip
"""What to do instead of verbs of scontrol that mean nothing here."""
Edit = Callable[[Work], dict[str, Any]]


def run(console: Console, given: Parsed) -> int:
    """Runs the verb that the words name, and returns the exit code; errors of single jobs are printed, as Slurm prints them."""
    if not given.words:
        raise Rejected("give a command, such as show job 12, hold 12, release 12 or update JobId=12 TimeLimit=2:00:00", reason="BadInput")
    verb, words = given.words[0].lower(), given.words[1:]
    verbs: dict[str, Callable[[Console, Parsed, Sequence[str]], int]] = {
        "show": _show, "hold": _hold, "uhold": _hold, "release": _release, "requeue": _requeue, "requeuehold": _requeue,
        "update": _update, "ping": _ping, "version": _version,
    }  # fmt: skip
    if verb in verbs:
        return verbs[verb](console, given, words)
    if verb in _ELSEWHERE:
        raise Rejected(f"{verb}: {_ELSEWHERE[verb]}", reason="NotServed")
    console.complain(f"invalid keyword: {given.words[0]}")
    return exits.FAILED


def _ping(console: Console, given: Parsed, words: Sequence[str]) -> int:
    """Says whether a scheduler leads, as Slurm says whether slurmctld is up; returns FAILED where none does."""
    del given, words
    from lattice.cli.leadership import leadership

    silent = leadership(console).sentence
    console.say(f"Slurmctld(primary) at lattice is {'DOWN' if silent else 'UP'}")
    return exits.FAILED if silent else exits.DONE


def _version(console: Console, given: Parsed, words: Sequence[str]) -> int:
    """Prints the release of Slurm whose output this is."""
    del given, words
    from lattice.cli.slurm.options import VERSION

    console.say(VERSION)
    return exits.DONE


# Showing


def _show(console: Console, given: Parsed, words: Sequence[str]) -> int:
    """Shows what the words name, and returns the exit code. Raises Rejected for what Lattice does not show in Slurm's words."""
    if not words:
        raise Rejected("give what to show: job, partition, node, config, hostnames or hostlist", reason="BadInput")
    what, *rest = words
    what, _, name = what.lower().partition("=")
    rest = [name, *rest] if name else rest
    singles = {"jobs": "job", "jobid": "job", "partitions": "partition", "partitionname": "partition", "nodes": "node", "nodename": "node",
               "hostname": "hostnames", "configuration": "config"}  # fmt: skip
    match singles.get(what, what):
        case "job":
            return _show_jobs(console, given, rest)
        case "partition":
            return _show_partitions(console, given, rest)
        case "node":
            return _show_nodes(console, given, rest)
        case "config":
            console.say(*config_text(console.outside.now(), [row.name for row in fetch_nodes(console)]))
            return exits.DONE
        case "hostnames":
            console.say(*expand_nodes(",".join(rest) or console.outside.environ.get("SLURM_JOB_NODELIST", "")))
            return exits.DONE
        case "hostlist" | "hostlistsorted":
            names = [part for word in rest for part in word.split(",") if part]
            console.say(fold_nodes(sorted(names) if what.endswith("sorted") else names))
            return exits.DONE
        case "step" | "steps":
            raise Rejected("steps are shown by `sacct -j JOB` and `lattice status JOB --steps`", reason="NotServed")
        case "reservation" | "reservations":
            raise Rejected("reservations are shown by `lattice reservation list`", reason="NotServed")
        case _:
            console.complain(f"invalid entity:{what} for keyword:show ")
            return exits.FAILED


def _say_records(console: Console, given: Parsed, records: Sequence[Sequence[str]]) -> None:
    """Prints records of several lines with an empty line behind each, or on a line each with `--oneliner`."""
    for lines in records:
        if given.has("oneliner"):
            console.say(" ".join(line.strip() for line in lines))
        else:
            console.say(*lines, "")


def _show_jobs(console: Console, given: Parsed, words: Sequence[str]) -> int:
    """Shows jobs, all of them where none is named; an id that nobody knows is an error, as in Slurm."""
    ids = [_id(part) for word in words for part in word.split(",") if part]
    jobs = fetch_jobs(console, JobQuery(numbers=[one.number for one in ids], after=console.outside.now() - MIN_JOB_AGE))
    known = {job.id for job in jobs}
    records = []
    for job in with_cpus(console, sorted(jobs, key=lambda job: job.id)):
        try:
            work = console.cluster.get(ALLOCATIONS, job.object, job.namespace, type=Work)
        except NotFound:
            continue  # it has gone meanwhile
        records.append(job_text(job, work))
    _say_records(console, given, records)
    if any(one not in known for one in ids):
        console.complain(f"slurm_load_jobs error: {UNKNOWN}")
        return exits.FAILED
    if not ids and not jobs:
        console.say("No jobs in the system")
    return exits.DONE


def _show_partitions(console: Console, given: Parsed, words: Sequence[str]) -> int:
    """Shows partitions, all of them where none is named."""
    names = {part for word in words for part in word.split(",") if part}
    found = [one for one in fetch_partitions(console, fetch_nodes(console)) if not names or one.name in names]
    _say_records(console, given, [partition_text(one) for one in found])
    missing = names - {one.name for one in found}
    for name in sorted(missing):
        console.complain(f"Partition {name} not found")
    return exits.FAILED if missing else exits.DONE


def _show_nodes(console: Console, given: Parsed, words: Sequence[str]) -> int:
    """Shows nodes, all of them where none is named."""
    names = set(expand_nodes(",".join(words))) if words else set[str]()
    rows = fetch_nodes(console)
    jobs = fetch_jobs(console, JobQuery(after=console.outside.now()))
    busy = frozenset(name for job in jobs if job.is_active and job.nodelist for name in expand_nodes(job.nodelist))
    found = [row for row in rows if not names or row.name in names]
    _say_records(console, given, [node_text(row, busy) for row in found])
    missing = names - {row.name for row in found}
    for name in sorted(missing):
        console.complain(f"Node {name} not found")
    return exits.FAILED if missing else exits.DONE


# Changing


def _id(word: str) -> JobId:
    """Returns the id that a word such as `12` or `jobid=12` is; raises Rejected where it is none."""
    found = parse_job(word.rpartition("=")[2])
    if found is None:
        raise Rejected(f"{UNKNOWN}: {word}", reason="BadInput")
    return found


def _jobs_of(console: Console, words: Sequence[str]) -> list[tuple[JobId, SlurmJob | None]]:
    """Returns the jobs that words name, None for one that nobody knows. Raises Rejected where none is named."""
    ids = [_id(part) for word in words for part in word.split(",") if part]
    if not ids:
        raise Rejected("too few arguments: name a job", reason="BadInput")
    found = {job.id: job for job in fetch_jobs(console, JobQuery(numbers=[one.number for one in ids]))}
    return [(one, found.get(one)) for one in ids]


def _change(console: Console, words: Sequence[str], edit: Edit) -> int:
    """Changes the spec of each job that words name by what `edit` makes of it, and returns the exit code of all."""
    codes = []
    for one, job in _jobs_of(console, words):
        sentence = UNKNOWN if job is None or not job.is_active else ""
        try:
            if job is not None and not sentence:
                work = console.cluster.get(ALLOCATIONS, job.object, job.namespace, type=Work)
                console.cluster.patch(ALLOCATIONS, job.object, {"spec": edit(work)}, job.namespace, type=dict[str, Any])
        except Denied:
            sentence = "Access/permission denied"
        except NotFound:
            sentence = UNKNOWN
        except LatticeError as error:
            sayings.complain(console.outside, "scontrol", error, f"job {one.text}: ")
            codes.append(exits.FAILED)
            continue
        if sentence:
            console.complain(f"{sentence} for job {one.text}")
        codes.append(exits.FAILED if sentence else exits.DONE)
    return max(codes)


def _hold(console: Console, given: Parsed, words: Sequence[str]) -> int:
    """Keeps pending jobs from starting."""
    del given

    def edit(work: Work) -> dict[str, Any]:
        """Returns the change; raises Rejected for work that has nodes."""
        if work.status.nodes:
            raise Rejected("Job is no longer pending execution", reason="NotPending")
        return {"hold": True}

    return _change(console, words, edit)


def _release(console: Console, given: Parsed, words: Sequence[str]) -> int:
    """Lets held jobs start."""
    del given
    return _change(console, words, lambda _: {"hold": False})


def _requeue(console: Console, given: Parsed, words: Sequence[str]) -> int:
    """Ends the present attempt of running jobs, so that another one follows; with `requeuehold` it waits to be released.

    Jobs that wait stay as they are, and so do those that have ended, since `lattice requeue` submits them again under another number.
    """
    hold = {"hold": True} if given.words[0].lower() == "requeuehold" else {}

    def edit(work: Work) -> dict[str, Any]:
        """Returns the change; raises Rejected for work that has no nodes."""
        if not work.status.nodes:
            raise Rejected("Job is pending execution", reason="NotPlaced")
        return {"requeueAttempt": work.status.attempt, **hold}

    return _change(console, [word for word in words if word.lower() != "incomplete"], edit)


def _update(console: Console, given: Parsed, words: Sequence[str]) -> int:
    """Changes a job: `JobId=12 TimeLimit=2:00:00`, and what else may be changed. Raises Rejected for what may not."""
    pairs = [tuple(word.partition("=")[::2]) for word in words]
    by_name = {name.lower(): value for name, value in pairs}
    if {"nodename", "partitionname", "reservationname", "reservation"} & by_name.keys() and not {"jobid", "job"} & by_name.keys():
        what = _NODES if "nodename" in by_name else "`lattice admin vcluster` and `lattice reservation` change these"
        raise Rejected(f"only jobs are updated here: {what}", reason="NotServed")
    job = by_name.get("jobid") or by_name.get("job")
    if not job:
        raise Rejected("No valid entity in update command: give JobId=NUMBER", reason="BadInput")
    spec: dict[str, Any] = {}
    for name, value in pairs:
        if name.lower() in ("jobid", "job"):
            continue
        made = _changed(name.lower(), value, console.outside.now())
        if made is None:
            console.complain(f"Update of this parameter is not supported: {name}={value}", "Request aborted")
            return exits.FAILED
        for key, part in made.items():
            spec[key] = {**spec.get(key, {}), **part} if isinstance(part, dict) else part
    del given
    return _change(console, [job], lambda _: spec) if spec else exits.DONE


def _changed(name: str, value: str, now: float) -> dict[str, Any] | None:
    """Returns the part of spec that one `NAME=VALUE` of scontrol changes; None where it is not one that may be changed."""
    match name:
        case "timelimit":
            return {"lifecycle": {"walltime": walltime_of(value)}}
        case "jobname" | "name":
            return {"tags": {"name": value}}
        case "comment":
            return {"tags": {"comment": value}}
        case "starttime":
            return {"lifecycle": {"notBefore": format_time(read_moment(value, now))}}
        case "dependency" if not value:
            return {"dependsOn": None}
        case "priority" if value == "0":
            return {"hold": True}
        case "qos" if is_digits(value, 2):
            return {"lifecycle": {"preemptionClass": int(value)}}
        case _:
            return None
