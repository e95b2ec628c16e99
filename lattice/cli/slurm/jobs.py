"""An allocation as Slurm's programs show it: its id, its state and its reason in Slurm's words; pure.

This is the one place that reads and writes the ids of jobs, so that elements of arrays (`12_7`) are known here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from lattice.errors import Rejected
from lattice.models.conditions import CANCELLED, CHECKPOINTING, COMPLETED, FAILED, PENDING, RUNNING, STAGING, SUSPENDED
from lattice.scheduling.queries.row_shapes import StatusDetail, StatusRow
from lattice.units import is_digits, parse_duration

MOST_DIGITS: Final = 9


class JobId(NamedTuple):
    """The id of a job, or of an element of an array."""

    number: int
    element: int | None = None
    """Its index in the array; None: the job itself."""

    @property
    def text(self) -> str:
        """Returns the id as Slurm writes it: `12`, or `12_7`."""
        return str(self.number) if self.element is None else f"{self.number}_{self.element}"


class StepId(NamedTuple):
    """A job, or one step of it (`12.0`, `12.batch`); `step` empty: the whole job."""

    job: JobId
    step: str = ""


def parse_job(text: str) -> JobId | None:
    """Returns the id that a text is; None where it is none."""
    number, underline, index = text.partition("_")
    if not is_digits(number, MOST_DIGITS) or (underline and not is_digits(index, MOST_DIGITS)):
        return None
    return JobId(int(number), int(index) if underline else None)


def parse_step(text: str) -> StepId | None:
    """Returns the job, or the step, that a text such as `12`, `12.0` or `12.batch` names; None where it names none."""
    job, dot, step = text.partition(".")
    found = parse_job(job)
    if found is None or (dot and not (is_digits(step, MOST_DIGITS) or step in ("batch", "extern", "interactive"))):
        return None
    return StepId(found, step)


class State(NamedTuple):
    """A state of Slurm: its name, and its letters."""

    name: str
    letters: str


PD, R, CF, S, CG = (
    State("PENDING", "PD"), State("RUNNING", "R"), State("CONFIGURING", "CF"), State("SUSPENDED", "S"), State("COMPLETING", "CG"),
)  # fmt: skip
CD, F, CA, TO = State("COMPLETED", "CD"), State("FAILED", "F"), State("CANCELLED", "CA"), State("TIMEOUT", "TO")
NF, OOM, DL, RQ = State("NODE_FAIL", "NF"), State("OUT_OF_MEMORY", "OOM"), State("DEADLINE", "DL"), State("REQUEUED", "RQ")
PR, BF = State("PREEMPTED", "PR"), State("BOOT_FAIL", "BF")
ACTIVE: Final = (PD, R, CF, S, CG)
STATES: Final = (PD, R, S, CD, CA, F, TO, NF, PR, BF, DL, OOM, CG, CF, RQ)
NAMES: Final = (
    "PENDING,RUNNING,SUSPENDED,COMPLETED,CANCELLED,FAILED,TIMEOUT,NODE_FAIL,PREEMPTED,BOOT_FAIL,DEADLINE,OUT_OF_MEMORY,COMPLETING,"
    "CONFIGURING,RESIZING,RESV_DEL_HOLD,REQUEUED,REQUEUE_FED,REQUEUE_HOLD,REVOKED,SIGNALING,SPECIAL_EXIT,STAGE_OUT,STOPPED"
)
"""The states that Slurm names where one is unknown."""
_OTHER_STATES: Final = frozenset({
    *NAMES.split(","), "RS", "RD", "RF", "RH", "RV", "SI", "SE", "SO", "ST",
})  # fmt: skip
_OF_PHASE: Final = {
    PENDING: PD, STAGING: CF, RUNNING: R, CHECKPOINTING: R, SUSPENDED: S, COMPLETED: CD, FAILED: F, CANCELLED: CA,
}  # fmt: skip
_OF_FAILURE: Final = {
    "WalltimeExceeded": TO, "NodeLost": NF, "Lost": NF, "OutOfMemory": OOM, "NodeUnfit": NF, "DeadlineMissed": DL,
}  # fmt: skip

PENDING_WORDS: Final = {
    "NotYetEvaluated": "None", "WaitingForNodes": "Resources", "BehindHigherPriority": "Priority", "NodesUnavailable": "ReqNodeNotAvail",
    "ReservedNodes": "Reservation", "WaitingForQuotaHeadroom": "AssocGrpNodeLimit", "WaitingForQuotaShare": "AssocGrpNodeLimit",
    "QuotaReclaimed": "AssocGrpNodeLimit", "BudgetExhausted": "AssocGrpBillingMinutes", "WaitingForDependency": "Dependency",
    "WaitingForDag": "Dependency",
    "DependencyFailed": "DependencyNeverSatisfied", "DependencyNotNeeded": "DependencyNeverSatisfied",
    "DependencyLost": "DependencyNeverSatisfied", "WaitingForData": "BurstBufferStageIn", "WaitingForImages": "BurstBufferStageIn",
    "WaitingForNetworkDomain": "Resources", "InsufficientConformance": "Resources", "PowerBudget": "PowerNotAvail",
    "WaitingForVictims": "Resources",
    "Requeued": "BeginTime", "Held": "JobHeldUser", "NotBefore": "BeginTime", "RecoveryUncertain": "SchedDefer",
    "RetryBackOff": "BeginTime", "VClusterClosed": "PartitionDown", "NotAdmitted": "PartitionConfig", "NeverFits": "BadConstraints",
}  # fmt: skip
"""The word of Slurm for each reason to wait."""
_END_WORDS: Final = {
    "TaskFailed": "NonZeroExitCode", "WalltimeExceeded": "TimeLimit", "NodeLost": "NodeDown", "Lost": "NodeDown", "NodeUnfit": "NodeDown",
    "OutOfMemory": "OutOfMemory", "StartFailed": "JobLaunchFailure", "PrologueFailed": "JobLaunchFailure",
    "StartTimeout": "JobLaunchFailure", "UserUnknown": "JobLaunchFailure", "UserRefused": "JobLaunchFailure",
    "ImageNotFound": "JobLaunchFailure", "ImageRefused": "JobLaunchFailure", "MountInvalid": "JobLaunchFailure",
    "ViewUnknown": "JobLaunchFailure", "ImagesUnresolved": "JobLaunchFailure", "DeadlineMissed": "DeadLine",
    "DependencyFailed": "DependencyNeverSatisfied", "DependencyNotNeeded": "DependencyNeverSatisfied",
}  # fmt: skip


def state_of(phase: str, reason: str, leaving: str = "") -> State:
    """Returns the state of an allocation in this phase, which ended or waits for this reason; CG where it is ending (`leaving`)."""
    state = _OF_PHASE.get(phase, PD)
    if state in (F, CA):
        return _OF_FAILURE.get(reason, state)
    return CG if state is R and leaving and leaving != "CancelRequested" else state


def reason_of(state: State, reason: str) -> str:
    """Returns the reason in Slurm's words; `None` where there is none."""
    return PENDING_WORDS.get(reason, "Resources" if reason else "None") if state is PD else _END_WORDS.get(reason, "None")


def wanted_states(words: Iterable[str]) -> frozenset[State] | None:
    """Returns the states that words such as `PD`, `running` or `all` name; None: all of them.

    Raises Rejected, as Slurm does, for an unknown one; one that Lattice never has names none.
    """
    found: set[State] = set()
    for word in words:
        upper = word.upper()
        if upper == "ALL":
            return None
        known = {state for state in STATES if upper in (state.name, state.letters)}
        if not known and upper not in _OTHER_STATES:
            raise Rejected(f"Invalid job state specified: {word}\nValid job states include: {NAMES}\n", reason="BadState")
        found |= known
    return frozenset(found)


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """One allocation as Slurm's programs print it; times are seconds since the epoch, None where there are none."""

    id: JobId
    name: str
    user: str
    account: str
    partition: str
    state: State
    reason: str
    nodes: int
    nodelist: str = ""
    cpus: int = 0
    """The CPUs of the nodes that it holds; 0: not known, or it holds none."""
    submitted: float = 0.0
    start: float | None = None
    end: float | None = None
    time_limit: float | None = None
    code: int = 0
    signal: int = 0
    priority: int = 0
    namespace: str = ""
    object: str = ""
    """The name of the Allocation."""
    attempt: int = 1
    expected: str = ""
    """When it is expected to start, RFC 3339; empty: unknown."""
    now: float = 0.0
    """The moment of asking."""

    @property
    def exit_code(self) -> str:
        """Returns exit code and signal as Slurm writes them, `3:0` or `0:9`; `0:0` for work that was cancelled or ran out of time."""
        if self.state in (CA, TO, DL, PD, R, CF, CG, S):
            return "0:0"
        return f"0:{self.signal}" if self.signal else f"{self.code}:0"

    @property
    def is_active(self) -> bool:
        """Tells whether it has not ended."""
        return self.state in ACTIVE

    @property
    def elapsed(self) -> float:
        """Returns how long it ran, or has been running, in seconds; 0 while it waits."""
        if self.start is None or self.state is PD:
            return 0.0
        return max(0.0, (self.end if self.end is not None and not self.is_active else self.now) - self.start)


def account_of(user: str) -> str:
    """Returns the user's name as the nodes know it: without the prefix that an identity provider puts before it."""
    return user.rpartition(":")[2]


def job_of(row: StatusRow, detail: StatusDetail, now: float) -> SlurmJob:
    """Returns the job that a row of the status list is; `now`: the moment of asking."""
    state = state_of(row.phase, detail.reason, row.leaving)
    least = row.nodes.partition("-")[0]
    return SlurmJob(
        id=JobId(row.number), name=detail.job or row.name, user=account_of(row.user), account=detail.tenant, partition=row.vcluster,
        state=state, reason=reason_of(state, detail.reason), nodes=int(least) if is_digits(least) else 1, nodelist=detail.nodelist,
        submitted=row.submitted, start=row.start, end=row.end, time_limit=parse_duration(row.walltime) if row.walltime else None,
        code=detail.code, signal=detail.signal, priority=0 if detail.reason == "Held" else detail.preemption_class + 1,
        namespace=row.namespace, object=row.name, attempt=detail.attempt or 1, expected=row.expected_p50 or "", now=now,
    )  # fmt: skip
