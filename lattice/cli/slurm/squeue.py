"""`squeue`: lists the jobs of the tenant that wait, run, or have just ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from lattice.cli import exits
from lattice.cli.slurm import sayings
from lattice.cli.slurm.clock import short_span, stamp
from lattice.cli.slurm.columns import PrintedColumn, lines, read_codes, read_names
from lattice.cli.slurm.fetch import MIN_JOB_AGE, JobQuery, fetch_jobs, of_users
from lattice.cli.slurm.iteration import iterate
from lattice.cli.slurm.jobs import ACTIVE, DL, OOM, PD, TO, F, SlurmJob, account_of, parse_job, parse_step, wanted_states
from lattice.cli.slurm.nodes import with_cpus
from lattice.cli.slurm.options import Parsed, grammar
from lattice.errors import Rejected
from lattice.units import expand_nodes, parse_time

if TYPE_CHECKING:
    from lattice.cli.console import Console

GRAMMAR: Final = grammar(
    "squeue",
    switches="all array array-unique federation hide local long me name-only noconvert noheader notme only-job-state priority sibling"
    " start",
    values="account cluster clusters format Format iterate licenses name nodelist nodes partition qos reservation sort states users user",
    optional="jobs steps",
    short="a=all r=array M=clusters o=format O=Format i=iterate j=jobs L=licenses l=long n=name h=noheader p=partition P=priority q=qos"
    " R=reservation S=sort t=states s=steps u=user w=nodelist A=account",
    unserved={
        "licenses": "licenses are not counted by Lattice",
        "qos": "jobs have a class instead, which `lattice status -o wide` shows",
        "reservation": "`lattice reservation show NAME` tells of one",
    },
)
WRONG_USAGE = 1
DEFAULT: Final = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG: Final = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START: Final = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
_WITH_REASON: Final = (PD, F, TO, OOM, DL)
"""States in which NODELIST(REASON) is the reason."""
_NONE: Final = "(null)"


def _place(job: SlurmJob) -> str:
    """Returns the nodes, or the reason in brackets."""
    return f"({job.reason})" if job.state in _WITH_REASON else job.nodelist


def _start(job: SlurmJob) -> str:
    """Returns when it started, or is expected to."""
    if job.start is None or job.state is PD:
        return stamp(parse_time(job.expected)) if job.expected else "N/A"
    return stamp(job.start)


def _end(job: SlurmJob) -> str:
    """Returns when it ended, or will at the latest."""
    if not job.is_active:
        return stamp(job.end, "N/A")
    if job.state is PD or job.start is None:
        return "N/A"
    return "NONE" if job.time_limit is None else stamp(job.start + job.time_limit)


def _left(job: SlurmJob) -> str:
    """Returns how much of its time limit is left."""
    if job.time_limit is None:
        return "UNLIMITED"
    return short_span(job.time_limit - job.elapsed)


def _cpus(job: SlurmJob) -> int:
    """Returns the CPUs that a job has, or, at least one a node, will have."""
    return job.cpus or job.nodes


CODES: Final[dict[str, tuple[str, Callable[[SlurmJob], str]]]] = {
    "a": ("ACCOUNT", lambda job: job.account or _NONE),
    "A": ("JOBID", lambda job: str(job.id.number)),
    "B": ("EXEC_HOST", lambda job: expand_nodes(job.nodelist)[0] if job.nodelist else "n/a"),
    "c": ("MIN_CPUS", lambda _: "1"),
    "C": ("CPUS", lambda job: str(_cpus(job))),
    "d": ("MIN_TMP_DISK", lambda _: "0"),
    "D": ("NODES", lambda job: str(job.nodes)),
    "e": ("END_TIME", _end),
    "E": ("DEPENDENCY", lambda job: "(unfulfilled)" if job.reason == "Dependency" else _NONE),
    "f": ("FEATURES", lambda _: _NONE),
    "F": ("ARRAY_JOB_ID", lambda job: str(job.id.number)),
    "g": ("GROUP", lambda job: job.user),
    "h": ("OVER_SUBSCRIBE", lambda _: "NO"),
    "i": ("JOBID", lambda job: job.id.text),
    "j": ("NAME", lambda job: job.name),
    "k": ("COMMENT", lambda _: _NONE),
    "K": ("ARRAY_TASK_ID", lambda job: "N/A" if job.id.element is None else str(job.id.element)),
    "l": ("TIME_LIMIT", lambda job: short_span(job.time_limit)),
    "L": ("TIME_LEFT", _left),
    "m": ("MIN_MEMORY", lambda _: "0"),
    "M": ("TIME", lambda job: short_span(job.elapsed)),
    "n": ("REQ_NODES", lambda _: ""),
    "N": ("NODELIST", lambda job: job.nodelist),
    "o": ("COMMAND", lambda _: _NONE),
    "p": ("PRIORITY", lambda job: f"{job.priority / 12:.14f}"),
    "P": ("PARTITION", lambda job: job.partition),
    "q": ("QOS", lambda _: _NONE),
    "Q": ("PRIORITY", lambda job: str(job.priority)),
    "r": ("REASON", lambda job: job.reason),
    "R": ("NODELIST(REASON)", _place),
    "S": ("START_TIME", _start),
    "t": ("ST", lambda job: job.state.letters),
    "T": ("STATE", lambda job: job.state.name),
    "u": ("USER", lambda job: job.user),
    "U": ("USER", lambda job: job.user),
    "v": ("RESERVATION", lambda _: _NONE),
    "V": ("SUBMIT_TIME", lambda job: stamp(job.submitted)),
    "w": ("WCKEY", lambda _: _NONE),
    "x": ("EXC_NODES", lambda _: ""),
    "y": ("NICE", lambda _: "0"),
    "Y": ("SCHEDNODES", lambda _: _NONE),
    "z": ("S:C:T", lambda _: "*:*:*"),
    "Z": ("WORK_DIR", lambda _: _NONE),
}
_NAMES: Final = {
    "account": "a", "arrayjobid": "F", "arraytaskid": "K", "batchhost": "B", "command": "o", "dependency": "E", "endtime": "e",
    "jobid": "A", "jobarrayid": "i", "maxnodes": "D", "mincpus": "c", "minmemory": "m", "name": "j", "nodelist": "N", "nodes": "N",
    "numcpus": "C", "numnodes": "D", "partition": "P", "prioritylong": "Q", "priority": "p", "qos": "q", "reason": "r",
    "reasonlist": "R", "reservation": "v", "starttime": "S", "state": "T", "statecompact": "t", "submittime": "V", "timeleft": "L",
    "timelimit": "l", "timeused": "M", "username": "u", "workdir": "Z",
}  # fmt: skip
FIELDS: Final = {name: CODES[letter] for name, letter in _NAMES.items()}


def run(console: Console, given: Parsed) -> int:
    """Prints the jobs that the options ask for, again every few seconds with `--iterate`, and returns the exit code."""
    return iterate(console, given, _show)


def _show(console: Console, given: Parsed) -> int:
    """Prints the jobs once. Raises Rejected for words that do not read."""
    states = wanted_states(given.all("states"))
    numbers = _numbers(given)
    now = console.outside.now()
    ended = given.has("states")
    jobs = fetch_jobs(console, JobQuery(given.has("me"), numbers, now - (MIN_JOB_AGE if ended else 0)))
    if len(numbers) == 1 and not jobs:
        console.complain("slurm_load_jobs error: Invalid job id specified")
        return exits.FAILED
    users = [*given.all("user"), *given.all("users")]
    if users:
        jobs = of_users(console, jobs, users)
    shown = [job for job in jobs if _keeps(given, job) and (job.state in (states or ()) if ended and states is not None else True)]
    if not ended:
        shown = [job for job in shown if job.state in ACTIVE]
    if given.has("notme"):
        shown = [job for job in shown if job.user != account_of(console.user)]
    if given.has("start"):
        shown = [job for job in shown if job.state is PD]
    lead, columns = _columns(console, given)
    if given.has("long") and not given.has("noheader"):
        console.say(time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(now)))
    order = given.last("sort") or ("P,t,-p" if not given.has("start") else "P,t,S")
    if "C" in order or any(column.heading == "CPUS" for column in columns):
        shown = with_cpus(console, shown)
    ordered = _sorted(shown, order)
    console.say(*lines(columns, ordered, lead=lead, header=not given.has("noheader")))
    return exits.DONE


def _numbers(given: Parsed) -> list[int]:
    """Returns the numbers of the jobs that `--jobs` and `--steps` name; as in Slurm, `-j 12` has its ids in the word behind it."""
    jobs, steps = given.all("jobs"), given.all("steps")
    behind = [part for word in given.words for part in word.split(",") if part]
    if given.has("jobs") and not jobs:
        jobs = behind
    elif given.has("steps") and not steps:
        steps = behind
    return [_number(word) for word in jobs] + [_step_number(word) for word in steps]


def _number(word: str) -> int:
    """Returns the number of a job's id; raises Rejected where it is none."""
    found = parse_job(word)
    if found is None:
        raise Rejected(f"Invalid job id: {word}", reason="BadInput")
    return found.number


def _step_number(word: str) -> int:
    """Returns the number of the job of a step's id; raises Rejected where it is none."""
    found = parse_step(word)
    if found is None:
        raise Rejected(f"Invalid job_step id: {word}", reason="BadInput")
    return found.job.number


def _keeps(given: Parsed, job: SlurmJob) -> bool:
    """Tells whether a job passes the filters by name, partition, account and nodes."""
    filters = (
        (set(given.all("name")), job.name),
        (set(given.all("partition")), job.partition),
        (set(given.all("account")), job.account),
    )
    if any(wanted and value not in wanted for wanted, value in filters):
        return False
    nodes = {name for option in ("nodelist", "nodes") for word in (given.last(option) or "",) if word for name in expand_nodes(word)}
    return not nodes or bool(nodes & set(expand_nodes(job.nodelist) if job.nodelist else ()))


def _columns(console: Console, given: Parsed) -> tuple[str, Sequence[PrintedColumn[SlurmJob]]]:
    """Returns the text before the columns, and these: of `--Format`, of `--format`, of SQUEUE_FORMAT, else the usual ones."""
    environ: Mapping[str, str] = console.outside.environ
    names = given.last("Format")
    if names is None and given.last("format") is None and "SQUEUE_FORMAT2" in environ:
        names = environ["SQUEUE_FORMAT2"]
    lead = ""
    columns: Sequence[PrintedColumn[SlurmJob]]
    if names is not None:
        columns, wrong = read_names(names, FIELDS, "job")
    else:
        spec = given.last("format") or environ.get("SQUEUE_FORMAT")
        usual = LONG if given.has("long") else START if given.has("start") else DEFAULT
        lead, columns, wrong = read_codes(spec or usual, CODES, "job")
    sayings.error(console.outside, "squeue", *wrong)
    return lead, columns


def _sorted(jobs: Sequence[SlurmJob], fields: str) -> list[SlurmJob]:
    """Returns the jobs in the order of fields such as `P,t,-p`, each a code of the format, `-` in front turning it round; those of equal
    fields in order of submission.
    """
    numeric: dict[str, Callable[[SlurmJob], float]] = {
        "i": lambda job: job.id.number, "A": lambda job: job.id.number, "p": lambda job: job.priority, "Q": lambda job: job.priority,
        "D": lambda job: job.nodes, "C": _cpus, "S": lambda job: job.start or 0.0, "V": lambda job: job.submitted,
        "e": lambda job: job.end or 0.0, "l": lambda job: job.time_limit or 0.0,
        "M": lambda job: job.elapsed,
    }  # fmt: skip
    found = sorted(jobs, key=lambda job: job.id)
    for field in reversed([word.strip() for word in fields.split(",") if word.strip()]):
        letter, turned = field.lstrip("+-")[:1], field.startswith("-")
        if letter in numeric:
            found.sort(key=numeric[letter], reverse=turned)
        elif letter in CODES:
            found.sort(key=CODES[letter][1], reverse=turned)
    return found
