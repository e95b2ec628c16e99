"""`sacct`: lists jobs of today, or named ones, with their steps, and how they ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lattice.accounting.answers import HistoryReport, HistoryRow
from lattice.cli import exits
from lattice.cli.gateway import ask_document, ask_records
from lattice.cli.slurm.clock import long_span, midnight, processor_time, read_moment, stamp
from lattice.cli.slurm.columns import PrintedColumn, table
from lattice.cli.slurm.fetch import JobQuery, fetch_jobs, of_users
from lattice.cli.slurm.jobs import (
    CA,
    CD,
    CF,
    CG,
    NF,
    PD,
    RQ,
    TO,
    F,
    JobId,
    R,
    SlurmJob,
    State,
    StepId,
    account_of,
    parse_step,
    reason_of,
    state_of,
    wanted_states,
)  # fmt: skip
from lattice.cli.slurm.nodes import with_cpus
from lattice.cli.slurm.options import Parsed, grammar
from lattice.errors import LatticeError, Rejected
from lattice.launches.answers import LaunchReport, LaunchRow
from lattice.units import expand_nodes, format_time, is_digits, parse_time

if TYPE_CHECKING:
    from lattice.cli.console import Console

GRAMMAR: Final = grammar(
    "sacct",
    switches="allusers allclusters allocations brief completion duplicates federation helpformat local long noconvert noheader parsable"
    " parsable2 truncate array use-local-uid whole-hetjob json yaml",
    values="accounts associations clusters constraints delimiter endtime flags format gid group jobs name ncpus nnodes nodelist partition"
    " qos reason starttime state timelimit-min timelimit-max uid user wckeys file",
    optional="env-vars units",
    short="a=allusers L=allclusters X=allocations b=brief c=completion D=duplicates e=helpformat l=long n=noheader p=parsable P=parsable2"
    " T=truncate A=accounts x=associations M=clusters C=constraints E=endtime F=flags o=format g=gid j=jobs N=nodelist r=partition q=qos"
    " S=starttime s=state u=user W=wckeys",
    unserved=dict.fromkeys(("json", "yaml"), "`lattice history -o json` prints the same jobs")
    | dict.fromkeys(("gid", "group"), "name the users with --user")
    | dict.fromkeys(("timelimit-min", "timelimit-max"), "print it with --format=jobid,timelimit")
    | dict.fromkeys(("ncpus", "nnodes"), "print it with --format=jobid,ncpus,nnodes")
    | {
        "associations": "name accounts with --accounts",
        "constraints": "jobs are not kept by their features",
        "file": "usage is read from the cluster alone",
        "qos": "jobs have a class instead",
        "reason": "print it with --format=jobid,reason",
        "wckeys": "jobs have none",
    },
)
WRONG_USAGE = 1
DEFAULT: Final = "jobid,jobname,partition,account,alloccpus,state,exitcode"
BRIEF: Final = "jobid,state,exitcode"
LONG: Final = "jobid,jobidraw,jobname,partition,maxvmsize,maxrss,averss,ntasks,alloccpus,elapsed,state,exitcode,reqmem,alloctres"
MOST_STEPPED: Final = 64
"""Jobs of which the steps are asked for at most; of more, the batch steps alone are shown."""
MOST_ROWS: Final = 10_000
_OF_STEP: Final = {
    "Running": R, "Completed": CD, "Failed": F, "Cancelled": CA, "Timeout": TO, "NodeFail": NF,
}  # fmt: skip
_OF_HISTORY: Final = {"Requeued": RQ, "Running": R}
_YEAR: Final = "365d"


class AccountingLine(NamedTuple):
    """One line: a job, or a step of it (`step` is its name behind the dot)."""

    job: SlurmJob
    step: str = ""
    name: str = ""
    cpu_seconds: float = 0.0
    peak_memory: int = 0
    tasks: int = 0
    cpus: int = 0

    @property
    def id(self) -> str:
        """Returns the id as Slurm writes it."""
        return f"{self.job.id.text}.{self.step}" if self.step else self.job.id.text

    @property
    def elapsed(self) -> float:
        """Returns how long it ran, in whole seconds."""
        return float(int(self.job.elapsed))


def _exit(entry: AccountingLine) -> str:
    """Returns the exit code; of the batch step of a job that was ended, the signal that it got."""
    if entry.step == "batch" and entry.job.state in (CA, TO) and entry.job.start is not None:
        return "0:15"
    return entry.job.exit_code


def _of_job(text: Callable[[SlurmJob], str]) -> Callable[[AccountingLine], str]:
    """Returns a cell that only the line of a job has."""
    return lambda entry: "" if entry.step else text(entry.job)


def _memory(entry: AccountingLine) -> str:
    """Returns the most memory that a step held, in KiB; nothing for a job."""
    return f"{entry.peak_memory // 1024}K" if entry.step and entry.peak_memory else ""


def _nodes(entry: AccountingLine) -> str:
    """Returns the nodes as Slurm writes them."""
    return entry.job.nodelist or "None assigned"


def _alloc_cpus(entry: AccountingLine) -> str:
    """Returns how many CPUs it had; 0 where it had no nodes, or none are known any more."""
    return str(entry.cpus)


def _tres(entry: AccountingLine) -> str:
    """Returns what it had, as Slurm lists trackable resources."""
    if not entry.job.nodelist:
        return ""
    billing = "" if entry.step else f"billing={entry.cpus},"
    return f"{billing}cpu={entry.cpus},node={entry.job.nodes}"


FIELDS: Final[dict[str, PrintedColumn[AccountingLine]]] = {
    "account": PrintedColumn("Account", lambda entry: entry.job.account, 10, True),
    "alloccpus": PrintedColumn("AllocCPUS", _alloc_cpus, 10, True),
    "allocnodes": PrintedColumn("AllocNodes", lambda entry: str(entry.job.nodes) if entry.job.nodelist else "0", 10, True),
    "alloctres": PrintedColumn("AllocTRES", _tres, 10, True),
    "averss": PrintedColumn("AveRSS", _memory, 10, True),
    "cluster": PrintedColumn("Cluster", lambda _: "lattice", 10, True),
    "comment": PrintedColumn("Comment", lambda _: "", 14, True),
    "constraints": PrintedColumn("Constraints", lambda _: "", 19, True),
    "consumedenergy": PrintedColumn("ConsumedEnergy", lambda _: "", 14, True),
    "cputime": PrintedColumn("CPUTime", lambda entry: long_span(entry.elapsed * entry.cpus), 10, True),
    "cputimeraw": PrintedColumn("CPUTimeRAW", lambda entry: str(int(entry.elapsed * entry.cpus)), 10, True),
    "derivedexitcode": PrintedColumn("DerivedExitCode", _of_job(lambda job: job.exit_code), 15, True),
    "elapsed": PrintedColumn("Elapsed", lambda entry: long_span(entry.elapsed), 10, True),
    "elapsedraw": PrintedColumn("ElapsedRaw", lambda entry: str(int(entry.elapsed)), 10, True),
    "eligible": PrintedColumn("Eligible", lambda entry: stamp(entry.job.submitted), 19, True),
    "end": PrintedColumn("End", lambda entry: stamp(None if entry.job.is_active else entry.job.end), 19, True),
    "exitcode": PrintedColumn("ExitCode", _exit, 8, True),
    "jobid": PrintedColumn("JobID", lambda entry: entry.id, 12, False),
    "jobidraw": PrintedColumn("JobIDRaw", lambda entry: entry.id, 12, False),
    "jobname": PrintedColumn("JobName", lambda entry: entry.name or entry.job.name, 10, True),
    "maxrss": PrintedColumn("MaxRSS", _memory, 10, True),
    "maxvmsize": PrintedColumn("MaxVMSize", _memory, 10, True),
    "ncpus": PrintedColumn("NCPUS", _alloc_cpus, 10, True),
    "nnodes": PrintedColumn("NNodes", lambda entry: str(entry.job.nodes), 8, True),
    "nodelist": PrintedColumn("NodeList", _nodes, 15, True),
    "ntasks": PrintedColumn("NTasks", lambda entry: str(entry.tasks or 1) if entry.step else "", 8, True),
    "partition": PrintedColumn("Partition", _of_job(lambda job: job.partition), 10, True),
    "priority": PrintedColumn("Priority", _of_job(lambda job: str(job.priority)), 10, True),
    "qos": PrintedColumn("QOS", _of_job(lambda _: ""), 10, True),
    "reason": PrintedColumn("Reason", _of_job(lambda job: job.reason), 22, True),
    "reqcpus": PrintedColumn("ReqCPUS", _alloc_cpus, 8, True),
    "reqmem": PrintedColumn("ReqMem", _of_job(lambda _: ""), 10, True),
    "reqnodes": PrintedColumn("ReqNodes", lambda entry: str(entry.job.nodes), 8, True),
    "reqtres": PrintedColumn("ReqTRES", _of_job(lambda job: f"node={job.nodes}"), 10, True),
    "reserved": PrintedColumn("Reserved", _of_job(lambda job: long_span((job.start or job.submitted) - job.submitted)), 10, True),
    "planned": PrintedColumn("Planned", _of_job(lambda job: long_span((job.start or job.submitted) - job.submitted)), 10, True),
    "start": PrintedColumn("Start", lambda entry: stamp(None if entry.job.state is PD else entry.job.start), 19, True),
    "state": PrintedColumn("State", lambda entry: entry.job.state.name, 10, True),
    "submit": PrintedColumn("Submit", lambda entry: stamp(entry.job.submitted), 19, True),
    "suspended": PrintedColumn("Suspended", lambda _: "00:00:00", 10, True),
    "systemcpu": PrintedColumn("SystemCPU", lambda _: "00:00:00", 10, True),
    "timelimit": PrintedColumn("Timelimit", _of_job(lambda job: long_span(job.time_limit)), 10, True),
    "timelimitraw": PrintedColumn(
        "TimelimitRaw", _of_job(lambda job: "UNLIMITED" if job.time_limit is None else str(int(job.time_limit // 60))), 10, True
    ),
    "totalcpu": PrintedColumn("TotalCPU", lambda entry: processor_time(entry.cpu_seconds) if entry.cpu_seconds else "00:00:00", 10, True),
    "uid": PrintedColumn("UID", lambda _: "", 6, True),
    "user": PrintedColumn("User", _of_job(lambda job: job.user), 9, True),
    "usercpu": PrintedColumn("UserCPU", lambda entry: processor_time(entry.cpu_seconds) if entry.cpu_seconds else "00:00:00", 10, True),
    "workdir": PrintedColumn("WorkDir", _of_job(lambda _: ""), 20, True),
}
"""The fields that a format may name, in small letters."""


def run(console: Console, given: Parsed) -> int:
    """Prints the jobs that the options ask for, and returns DONE, also where there are none."""
    if given.has("helpformat"):
        console.say(*_in_fours([column.heading for _, column in sorted(FIELDS.items())]))
        return exits.DONE
    columns = _columns(console, given)
    steps = [_step(word) for word in given.all("jobs")]
    jobs = _jobs(console, given, steps)
    separator = given.last("delimiter") or "|" if given.has("parsable", "parsable2") else ""
    needs_cpus = any(column.text is _alloc_cpus or column.heading in ("CPUTime", "CPUTimeRAW", "AllocTRES") for column in columns)
    entries = _entries(console, given, with_cpus(console, jobs) if needs_cpus else jobs, steps)
    console.say(*table(columns, entries, header=not given.has("noheader"), separator=separator, ends=given.has("parsable")))
    return exits.DONE


def _in_fours(names: Sequence[str]) -> list[str]:
    """Returns the names of fields in lines of four, as `--helpformat` prints them."""
    return ["".join(f"{name:<20}" for name in names[at : at + 4]).rstrip() for at in range(0, len(names), 4)]


def _step(word: str) -> StepId:
    """Returns the job or step that a word names. Raises Rejected where it names none."""
    found = parse_step(word)
    if found is None:
        raise Rejected(f"Invalid job id: {word}", reason="BadInput")
    return found


def _columns(console: Console, given: Parsed) -> list[PrintedColumn[AccountingLine]]:
    """Returns the columns of `--format`, of SACCT_FORMAT, else the usual ones; `name%20` sets a width, `%-20` to the left.

    Raises Rejected for a field that is not known.
    """
    usual = LONG if given.has("long") else BRIEF if given.has("brief") else console.outside.environ.get("SACCT_FORMAT") or DEFAULT
    columns = []
    for word in ",".join(given.all("format")).split(",") if given.has("format") else usual.split(","):
        name, _, width = word.strip().partition("%")
        column = FIELDS.get(name.lower()) or _abbreviated(name)
        left, digits = width.startswith("-"), width.lstrip("-")
        if is_digits(digits):
            column = column._replace(width=int(digits), right=not left if width else column.right)
        columns.append(column)
    return columns


def _abbreviated(name: str) -> PrintedColumn[AccountingLine]:
    """Returns the first field whose name begins so, as sacct takes them. Raises Rejected where there is none."""
    found = [column for known, column in sorted(FIELDS.items()) if name and known.startswith(name.lower())]
    if not found:
        raise Rejected(f'Invalid field requested: "{name}"', reason="BadInput")
    return found[0]


# Jobs


def _jobs(console: Console, given: Parsed, steps: Sequence[StepId]) -> list[SlurmJob]:
    """Returns the jobs that the options ask for, in order of their numbers: those whose objects are there as these say, others from the
    history; with `--duplicates` earlier attempts, too.
    """
    now = console.outside.now()
    since = read_moment(given.last("starttime") or "", now) if given.has("starttime") else 0.0 if steps else midnight(now)
    until = read_moment(given.last("endtime") or "", now) if given.has("endtime") else now
    numbers = sorted({step.job.number for step in steps})
    users = given.all("user") + given.all("uid")
    mine = not (users or steps or given.has("allusers"))
    live = [job for job in fetch_jobs(console, JobQuery(mine, numbers, since)) if job.submitted <= until]
    known = {job.id.number for job in live}
    jobs = live
    if given.has("duplicates") or not numbers or not known.issuperset(numbers):
        past = _past(console, given, numbers, since, until)
        jobs = [*live, *(job for job in past if job.state is RQ or job.id.number not in known)]
    if not given.has("duplicates"):
        jobs = [job for job in jobs if job.state is not RQ]
    if users:
        jobs = of_users(console, jobs, users)
    return sorted((job for job in jobs if _keeps(given, job)), key=lambda job: (job.id, job.attempt))


def _past(console: Console, given: Parsed, numbers: Sequence[int], since: float, until: float) -> list[SlurmJob]:
    """Returns attempts from the records of use; none where no gateway answers, which is noted."""
    begin = format_time(since) if since else _YEAR
    console.args.tenant, kept = (console.tenant or None) if given.has("allusers") else None, console.args.tenant
    try:
        report = ask_records(
            console, "/v1/history", HistoryReport, everybody=False, since=begin, until=format_time(until) if given.has("endtime") else "",
            state="", limit=str(MOST_ROWS), number=",".join(map(str, numbers)), name="",
        )  # fmt: skip
    except LatticeError as error:
        console.note(f"sacct: warning: jobs whose objects are gone are missing: {error.message}")
        return []
    finally:
        console.args.tenant = kept
    return [_of_row(row, console.outside.now()) for row in report.rows if row.number and row.state != "Running"]


def _of_row(row: HistoryRow, now: float) -> SlurmJob:
    """Returns the job that an attempt of the records was; its nodes are not known by name any more."""
    state = _OF_HISTORY.get(row.state) or state_of(row.state, row.reason)
    return SlurmJob(
        id=JobId(row.number), name=row.job or row.name, user=account_of(row.user), account=row.tenant, partition=row.vcluster, state=state,
        reason=reason_of(state, row.reason), nodes=row.nodes or 1, submitted=parse_time(row.submitted),
        start=parse_time(row.started) if row.started else None, end=parse_time(row.ended) if row.ended else None, code=row.exit or 0,
        namespace=row.namespace, object=row.name, attempt=row.attempt,
        now=now,
    )  # fmt: skip


def _keeps(given: Parsed, job: SlurmJob) -> bool:
    """Tells whether a job passes the filters by state, name, partition, account and nodes."""
    states = wanted_states(given.all("state"))
    state = R if job.state in (CG, CF) else job.state
    if given.has("state") and states is not None and state not in states:
        return False
    for option, value in (("name", job.name), ("partition", job.partition), ("accounts", job.account)):
        if given.has(option) and value not in given.all(option):
            return False
    nodes = given.last("nodelist")
    return not nodes or bool(set(expand_nodes(nodes)) & set(expand_nodes(job.nodelist) if job.nodelist else ()))


# Lines


def _entries(console: Console, given: Parsed, jobs: Sequence[SlurmJob], steps: Sequence[StepId]) -> list[AccountingLine]:
    """Returns the lines of jobs, each followed by its steps unless `--allocations` leaves these out; where steps are named, of these jobs
    only them.
    """
    asked = {(step.job, step.step) for step in steps}
    only = {step.job for step in steps if step.step} - {step.job for step in steps if not step.step}
    found: list[AccountingLine] = []
    for job in jobs:
        job = replace(job, state=R) if job.state in (CG, CF) else job
        entries = [AccountingLine(job, cpus=job.cpus)]
        if not given.has("allocations"):
            entries += _steps(console, job, ask_steps=len(jobs) <= MOST_STEPPED)
        found += [entry for entry in entries if job.id not in only or (job.id, entry.step) in asked]
    return found


def _steps(console: Console, job: SlurmJob, *, ask_steps: bool) -> Iterable[AccountingLine]:
    """Yields the batch step of a job that has started, and a line for each of its launches, where the gateway tells them."""
    if job.start is None or job.state is PD:
        return
    yield AccountingLine(job, "batch", "batch", cpus=job.cpus, tasks=1)
    if not ask_steps or job.state is RQ:
        return
    try:
        report = ask_document(console, f"/v1/launches/{job.namespace}/{job.object}", LaunchReport)
    except LatticeError:
        return  # its object, or its head node, is gone
    for row in report.rows:
        yield _of_launch(job, row)


def _of_launch(job: SlurmJob, row: LaunchRow) -> AccountingLine:
    """Returns the line of one launch."""
    state: State = _OF_STEP[row.state]
    step = replace(
        job, state=state, nodelist=row.nodes, nodes=row.node_count or 1, start=parse_time(row.started) if row.started else None,
        end=parse_time(row.ended) if row.ended else None, code=0 if row.signal else row.code, signal=row.signal,
    )  # fmt: skip
    return AccountingLine(
        step, str(row.number), row.name or row.command.partition(" ")[0].rpartition("/")[2], row.cpu_seconds, row.peak_memory,
        row.tasks, row.cpus or row.tasks,
    )  # fmt: skip
