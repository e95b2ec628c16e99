"""`scancel`: cancels jobs, or steps of them; `--signal` is taken where it means an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lattice.cli import exits
from lattice.cli.gateway import ask
from lattice.cli.slurm import sayings
from lattice.cli.slurm.fetch import JobQuery, fetch_jobs, of_users
from lattice.cli.slurm.jobs import SlurmJob, StepId, account_of, parse_step, wanted_states
from lattice.cli.slurm.options import Parsed, grammar
from lattice.errors import Denied, LatticeError, NotFound, Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.launches.answers import LaunchOrderAnswer
from lattice.units import expand_nodes, is_digits

if TYPE_CHECKING:
    from lattice.cli.console import Console

GRAMMAR: Final = grammar(
    "scancel",
    switches="batch ctld full hurry interactive me sibling",
    values="account clusters cron jobname name nodelist partition qos reservation signal state user wckey",
    short="A=account b=batch M=clusters f=full H=hurry i=interactive n=name w=nodelist p=partition q=qos R=reservation s=signal t=state"
    " u=user Q=quiet",
    unserved={
        "cron": "`scrontab` is not served", "qos": "name the jobs, or choose them by --name, --partition, --state or --user",
        "reservation": "name the jobs, or choose them by --name, --partition, --state or --user", "wckey": "jobs have none",
    },
)  # fmt: skip
WRONG_USAGE = 1
_ENDING: Final = frozenset({"KILL", "TERM", "INT", "HUP", "QUIT", "ABRT"})
"""Signals that end a program unless it catches them: the job is cancelled, TERM first, and KILL after its grace period."""
_OTHER: Final = frozenset({"USR1", "USR2", "URG", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "ALRM", "XCPU", "WINCH", "PIPE", "CHLD"})
_NUMBERS: Final = {"1": "HUP", "2": "INT", "3": "QUIT", "6": "ABRT", "9": "KILL", "10": "USR1", "12": "USR2", "15": "TERM", "18": "CONT",
                   "19": "STOP", "20": "TSTP"}  # fmt: skip
_FILTERS: Final = ("account", "jobname", "name", "me", "nodelist", "partition", "state", "user")


def run(console: Console, given: Parsed) -> int:
    """Cancels the jobs that are named, or that filters choose among the person's own, and returns the exit code.

    As in Slurm, ids that nobody knows, and jobs that have ended, are passed over in silence. Raises Rejected for ids and signals that do
    not read, or that no program may be sent.
    """
    steps = [_step(word) for words in given.words for word in words.split(",") if word]
    if not steps and not given.has(*_FILTERS):
        raise Rejected("No job identification provided", reason="BadInput")
    if given.has("signal") and not _ends(console, given.last("signal") or ""):
        return exits.FAILED
    states = wanted_states(given.all("state"))
    jobs = fetch_jobs(console, JobQuery(not steps and not given.has("user"), [step.job.number for step in steps], console.outside.now()))
    found = {
        job.id: job
        for job in _filtered(console, given, jobs)
        if job.is_active and (states is None or not given.has("state") or job.state in states)
    }
    codes = []
    if not steps:
        codes = [_cancel(console, given, job) for job in found.values()]
    for step in steps:
        job = found.get(step.job)
        if job is None:
            if given.has("verbose"):
                sayings.error(console.outside, "scancel", f"Kill job error on job id {step.job.text}: Invalid job id specified")
        elif is_digits(step.step):
            codes.append(_cancel_step(console, given, job, int(step.step)))
        else:
            codes.append(_cancel(console, given, job))
    return max(codes, default=exits.DONE)


def _step(word: str) -> StepId:
    """Returns the job or step that a word names; raises Rejected, as Slurm does, where it names none."""
    found = parse_step(word)
    if found is None:
        raise Rejected(f"Invalid job id {word}", reason="BadInput")
    return found


def _ends(console: Console, text: str) -> bool:
    """Tells whether a signal means that jobs are to end; says otherwise why it is not sent.

    Raises Rejected where it is no signal.
    """
    name = _NUMBERS.get(text, text.upper().removeprefix("SIG"))
    if name in _ENDING:
        return True
    if name not in _OTHER:
        console.complain(f"Unknown job signal: {text}")
        return False
    sentence = (
        f"signal {name} is not sent to a job by this release: KILL, TERM and INT cancel it;"
        " in the job's script `kill` and `srun`'s own signals reach its tasks"
    )
    sayings.error(console.outside, "scancel", sentence)
    return False


def _filtered(console: Console, given: Parsed, jobs: list[SlurmJob]) -> list[SlurmJob]:
    """Returns the jobs that pass the filters of the options."""
    if users := given.all("user"):
        jobs = of_users(console, jobs, users)
    elif given.has("me"):
        jobs = [job for job in jobs if job.user == account_of(console.user)]
    names = {*given.all("name"), *given.all("jobname")}
    nodes = set(expand_nodes(given.last("nodelist") or "")) if given.last("nodelist") else set[str]()
    return [
        job
        for job in jobs
        if (not names or job.name in names)
        and (not given.has("partition") or job.partition in given.all("partition"))
        and (not given.has("account") or job.account in given.all("account"))
        and (not nodes or nodes & set(expand_nodes(job.nodelist) if job.nodelist else ()))
    ]


def _agrees(console: Console, given: Parsed, what: str) -> bool:
    """Tells whether a job or step is to end: always, but with `--interactive` only where the person answers `y`."""
    if not given.has("interactive"):
        return True
    sayings.ask(console.outside, f"Cancel {what} [y/n]?")
    return console.reads_yes()


def _cancel(console: Console, given: Parsed, job: SlurmJob) -> int:
    """Has one job end, and returns the exit code; an error is printed, as Slurm prints it."""
    if not _agrees(console, given, f"job_id={job.id.text} name={job.name} partition={job.partition}"):
        return exits.DONE
    if given.has("verbose"):
        sayings.say(console.outside, "scancel", f"Terminating job {job.id.text}")
    try:
        wish = {"spec": {"cancel": {"reason": "scancel"}}}
        console.cluster.patch(ALLOCATIONS, job.object, wish, job.namespace, type=dict[str, Any])
    except NotFound:
        return exits.DONE  # it has gone meanwhile
    except Denied:
        sayings.error(console.outside, "scancel", f"Kill job error on job id {job.id.text}: Access/permission denied")
        return exits.FAILED
    except LatticeError as error:
        sayings.complain(console.outside, "scancel", error, f"Kill job error on job id {job.id.text}: ")
        return exits.FAILED
    return exits.DONE


def _cancel_step(console: Console, given: Parsed, job: SlurmJob, number: int) -> int:
    """Has one step of a job end, and returns the exit code; an error is printed."""
    if not _agrees(console, given, f"step_id={job.id.text}.{number} name={job.name} partition={job.partition}"):
        return exits.DONE
    try:
        body = ask(console, f"/v1/launches/{job.namespace}/{job.object}", {"number": number, "reason": "scancel"})
        msgspec.json.decode(body, type=LaunchOrderAnswer)
    except (LatticeError, msgspec.DecodeError) as error:
        sentence = error.message if isinstance(error, LatticeError) else str(error)
        sayings.error(console.outside, "scancel", f"Kill job error on job step id {job.id.text}.{number}: {sentence}")
        return exits.FAILED
    return exits.DONE
