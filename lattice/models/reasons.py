"""The closed lists of reasons: why something waits, why it ended, why a node is as it is.

Every "no" carries one of these words and a sentence with the numbers; the words are part of the
interface, the sentences are not. `docs/reference/reasons.md` is generated from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lattice.models.conditions import SOFTWARE_REFUSED


@dataclass(frozen=True)
class Reason:
    """One reason that conditions give: the word, its meaning, what a person does next, and whether any daemon gives it in this release."""

    word: str
    meaning: str
    next_step: str
    served: bool = True


PENDING_REASONS: Final[tuple[Reason, ...]] = (
    Reason(
        "NotYetEvaluated",
        "no scheduling cycle has looked at it yet",
        "wait one cycle; if the scheduler is silent, `lattice admin status` says since when",
    ),
    Reason("WaitingForNodes", "nodes that fit exist, but too few are free", "wait, or ask for fewer nodes"),
    Reason("BehindHigherPriority", "enough nodes are free, but they are kept for work that comes first", "wait, or raise the class"),
    Reason(
        "NodesUnavailable",
        "nodes that would fit are drained, down, degraded or disabled",
        "ask the operators, `lattice nodes` shows the reasons",
    ),
    Reason(
        "ReservedNodes",
        "the nodes are reserved for a window that its walltime crosses",
        "shorten the walltime or use the reservation",
    ),
    Reason(
        "WaitingForQuotaHeadroom",
        "a hard quota of the tenant or of its user, or a limit of its vcluster, is used up",
        "wait for the work that counts to end, or ask for more quota",
    ),
    Reason(
        "WaitingForQuotaShare",
        "its group of the quota tree, or one above it, has no share left",
        "wait for the work that counts to end; `lattice quota explain` shows every level",
    ),
    Reason(
        "QuotaReclaimed",
        "the quota tree took back what was lent to it; it waits again, with its submission time",
        "wait, or ask for a larger min",
    ),
    Reason("Requeued", "its owner, or an admin of its tenant, had the attempt before requeued; it waits again", "wait"),
    Reason(
        "BudgetExhausted",
        "the budget of its tenant, project or user is used up, and work waits at its end",
        "wait until the message's time, or ask an admin of the tenant for more; `lattice usage` shows the budgets",
    ),
    Reason(
        "WaitingForDependency",
        "what it depends on has not ended, or started, as asked; nothing is asked of quotas, reservations and nodes until then",
        "wait; the message names the open ones, `lattice why` shows them all",
    ),
    Reason(
        "DependencyFailed",
        "what it depends on can never be met, since work failed or was cancelled, and spec.onUnmet is Hold",
        "cancel it, or take spec.dependsOn away: `lattice update --no-dependencies`",
    ),
    Reason(
        "DependencyNotNeeded",
        "it waits for a failure of work that completed, and spec.onUnmet is Hold",
        "cancel it, or take spec.dependsOn away: `lattice update --no-dependencies`",
    ),
    Reason(
        "DependencyLost",
        "nobody knows how work that it depends on has ended: its object was removed by force, or never was",
        "look what became of that work; then cancel it, or take spec.dependsOn away: `lattice update --no-dependencies`",
    ),
    Reason(
        "WaitingForDag",
        "its DAG is not whole yet, or is gone: no member starts before all of them exist",
        "wait; `lattice dag status` says how many are made",
    ),
    Reason("WaitingForData", "its data is still on its way", "wait", served=False),
    Reason(
        "WaitingForImages",
        "the software environments that it names are not resolved in the site's registry yet",
        "wait; the message says what keeps them, and after software.resolveTimeout it fails",
    ),
    Reason("WaitingForNetworkDomain", "no network domain is free", "wait", served=False),
    Reason(
        "InsufficientConformance",
        "too few nodes share one fingerprint",
        "drop the conformance requirement or ask for fewer nodes",
    ),
    Reason("PowerBudget", "starting it would exceed the power budget", "wait"),
    Reason("WaitingForVictims", "preempted work is still ending on its nodes", "wait", served=False),
    Reason("Held", "spec.hold is set, of the work or of its DAG", "`lattice release`, or `lattice dag release`"),
    Reason("NotBefore", "spec.lifecycle.notBefore lies in the future", "wait"),
    Reason(
        "RecoveryUncertain",
        "etcd was restored, and a node that may have run it cannot be asked",
        "wait for the node; operators: `lattice admin ledger recover --accept`",
    ),
    Reason("RetryBackOff", "an attempt failed on the node side and the next one is delayed", "wait"),
    Reason("VClusterClosed", "the vcluster takes no new work to nodes", "wait until it is open, or submit to another one"),
    Reason(
        "NotAdmitted",
        "it does not keep today's limits: it came in while the admission webhook was away, or limits were lowered since",
        "the message says which limit and what to do; raising the limit lets it go",
    ),
    Reason("NeverFits", "no set of nodes that exists can hold it", "ask for what exists, `lattice nodes` lists it"),
)
"""Why an allocation is not placed, in the order of the documentation."""

IN_ORDER: Final = "order of submission"
"""Words of a sentence that says that submission alone decides who is first."""
BEYOND_LIMIT: Final = "more than the limit itself"
"""In the sentence of what asks for more than a limit of tenant, user or vcluster would ever give."""


def never_starts(reason: str, message: str) -> bool:
    """Tells whether an allocation that waits for this reason never starts unless a limit, the nodes of the cluster or its images change."""
    return reason in ("NeverFits", "NotAdmitted") or reason in SOFTWARE_REFUSED or BEYOND_LIMIT in message


PENDING_WORDS: Final = frozenset(reason.word for reason in PENDING_REASONS)

PREEMPTION_REASONS: Final[tuple[Reason, ...]] = (
    Reason("FitsWithout", "free nodes serve: nothing has to go", ""),
    Reason("TooFewNodes", "with all work gone too few nodes would do", "ask for fewer nodes, or drop a constraint"),
    Reason("NoneToPreempt", "nothing on nodes that fit may be preempted by its class", "wait; the message counts what protects the others"),
    Reason(
        "TooFewFreed", "no set of allowed size frees enough nodes, or not in the form that is asked for", "wait, or ask for fewer nodes"
    ),
    Reason("CostAboveValue", "what would be lost is not below what the allocation is worth", "wait"),
)
"""Why nothing is preempted for an allocation that waits (`lattice why`, `lattice plan`)."""

STAGING_REASONS: Final[tuple[Reason, ...]] = (
    Reason("WaitsForNodes", "some of its nodes are not prepared, or have not started", "wait; `lattice nodes` shows the nodes"),
    Reason("PeersUnreachable", "nodes of it cannot talk to each other", "ask the operators to look at the network between the named nodes"),
    Reason("NoGateway", "no gateway gives its nodes their work", "ask the operators to look at the gateways; it starts once one answers"),
    Reason("StartTimeout", "it did not start within work.startTimeout, and goes back to the queue", "wait"),
    Reason(
        "PartlyStarted",
        "not all of its nodes started within work.startTimeout: it is ended, and placed anew unless requeue is Never",
        "wait",
    ),
    Reason("NodesPrepared", "the wait is over: every node has started", ""),
    Reason("SoftwareStaged", "every node has the images of the site's registry that the work asks for", ""),
)
"""What a placed allocation waits for before it starts (condition Staged)."""

END_REASONS: Final[tuple[Reason, ...]] = (
    Reason("Completed", "every task ended with 0", ""),
    Reason(
        "OutOfMemory",
        "a task failed, and the kernel had killed processes of the work on its node because memory was short",
        "ask for nodes with more memory (`resources.memory`), or use less; `lattice status ID` shows the peak",
    ),
    Reason("TaskFailed", "a task ended with another code than 0, or by a signal", "`lattice logs`"),
    Reason("WalltimeExceeded", "it ran for its walltime and was ended by TERM, grace period, KILL", "ask for a longer walltime"),
    Reason("Cancelled", "its owner, or an admin, cancelled or deleted it", ""),
    Reason("DeadlineMissed", "it had not started by its deadline", "submit with a later deadline"),
    Reason(
        "DependencyFailed",
        "what it depended on could never be met any more: work had failed, or was cancelled",
        "`lattice history` shows that work; submit both again, or with spec.onUnmet Hold",
    ),
    Reason("DependencyNotNeeded", "it waited for a failure of work that completed", ""),
    Reason(
        "StartTimeout",
        "its nodes did not start together within work.startTimeout, three times in a row",
        "ask the operators to look at the network between the named nodes",
    ),
    Reason("StartFailed", "the node could not start it", "the message names what is missing"),
    Reason(
        "NodeUnfit",
        "the node itself could not take it: no room on its disk, no process to be had, no answer of its file systems",
        "raise lifecycle.requeue.max; `lattice nodes` says what is wrong with the node",
    ),
    Reason(
        "PrologueFailed",
        "a node could not be prepared, by a hook of the site, an image, a device or scratch space: the next attempt avoids the node,"
        " work.prologueRetries times in a row",
        "correct the request where the message blames it; else ask the operators to look at the node that it names",
    ),
    Reason(
        "ImageNotFound",
        "no image of the registry has the label, id or digest, or no file is there that the user may read; no attempt follows",
        "of a uenv: `lattice uenv list` shows them, a file must be readable on the nodes; of an OCI image: correct the tag, or push it",
    ),
    Reason(
        "ImageRefused",
        "it is no label or several images, no whole squashfs file, its views cannot be set, or files are not taken; no attempt follows",
        "name one image in full, as `lattice uenv list -o name` prints it; the message says what is wrong with it",
    ),
    Reason(
        "MountInvalid",
        "the mount point is not there, is a link, is taken twice, or belongs to the system; no attempt follows",
        "name a directory that exists on the nodes: IMAGE:/PATH",
    ),
    Reason("ViewUnknown", "no image of the work has the view, or more than one has; no attempt follows", "the message lists the views"),
    Reason(
        "ImagesUnresolved",
        "its images could not be resolved within software.resolveTimeout",
        "submit again once the registry answers; the message has its last answer",
    ),
    Reason("UserUnknown", "the node does not know the user, or no prefix of the name is stripped (work.userPrefixes)", "ask the operators"),
    Reason("UserRefused", "the user may not run work (root, or below minUid)", "submit as an ordinary user"),
    Reason("NodeLost", "a node was lost while it worked", "raise lifecycle.requeue.max"),
    Reason("QuotaReclaimed", "the quota tree took back what was lent to the attempt: the next one waits", ""),
    Reason("Requeued", "its owner, or an admin of its tenant, had the attempt requeued: the next one waits", ""),
    Reason(
        "Removed",
        "its object was taken away by force before it had ended: charged until then, or until a node last said that it ran",
        "cancel work instead; nodes end what the ledger still names",
    ),
    Reason("Lost", "the node rebooted, or its record of the work is gone", "raise lifecycle.requeue.max"),
    Reason(
        "ExitUnknown",
        "the process that keeps the exit code was itself killed, before the end of all its tasks was known",
        "look on the node that the message names for who killed it (`journalctl -k`, the audit log), then submit the work again",
    ),
    Reason("Ending", "it was told to end: TERM was sent, and KILL follows after its grace period", "wait until `status.killTime`"),
    Reason(
        "Unkillable",
        "KILL was sent, and processes are left that the kernel does not let go; its nodes stay held",
        "mend or reboot the node that the message names: a file system or device there does not answer",
    ),
    Reason("RequeuePending", "the attempt ended and another one may follow", ""),
    Reason("Stopped", "the node has ended it as ordered; the scheduler decides what follows", ""),
)
"""Why an allocation, or an attempt of it, ended."""

END_WORDS: Final = frozenset(reason.word for reason in END_REASONS)

NODE_REASONS: Final[tuple[Reason, ...]] = (
    Reason("HeartbeatFresh", "the node reports", ""),
    Reason("HeartbeatMissed", "no heartbeat for the timeout", "look at the node"),
    Reason("HeartbeatLost", "no heartbeat for timeout and grace period", "look at the node, or `lattice node disable --fenced`"),
    Reason("ManyNodesSilent", "more than half of the nodes fell silent at once: Down waits", "look at the network first"),
    Reason("NeverReported", "the node has not reported yet", "start its agent"),
    Reason("BootTimeout", "the node did not report within the boot timeout", "look at the node"),
    Reason("DrainRequested", "an operator asked for a drain", "`lattice node undrain` once Drained"),
    Reason("DrainComplete", "no work is left on the drained node", "`lattice node undrain`"),
    Reason("DisabledByOperator", "an operator disabled the node", "`lattice node enable`"),
    Reason("NameTaken", "another agent already reports under this name", "stop one of the two"),
    Reason("Registering", "the node reports, but has no index or no fingerprint yet", "wait; if it lasts, look at scheduler and agent"),
    Reason("Unhealthy", "the node's own judgement is Unhealthy", "look at the node"),
    Reason(
        "HardwareDeviates",
        "the node reports other hardware than is declared (spec.hardware), or more than it reported first",
        "look at the node; `lattice node accept` takes what it reports",
    ),
    Reason(
        "StateUnwritable",
        "the agent's state directory is full, read-only or does not answer (condition Healthy)",
        "make room on the node, or mend its disk",
    ),
    Reason(
        "EndsInMemory",
        "the state directory takes no exit records: they stand in the run directory, and are lost if the node reboots (condition Healthy)",
        "make room on the node, or mend its disk; the records are brought there by themselves",
    ),
    Reason("Unkillable", "processes of an attempt have survived KILL (condition Healthy)", "mend what they wait for, or reboot the node"),
    Reason(
        "EpilogueFailed",
        "what was prepared for an attempt that has ended could not be undone within work.epilogueTimeout (condition Healthy)",
        "mend what the message names; the node tries again by itself",
    ),
    Reason(
        "CacheFull",
        "no room can be made in the node's image cache for an image that was wanted: work goes elsewhere that needs images it has not",
        "`lattice cache status --nodes NODE` shows what it keeps, `lattice cache evict` removes it (condition CacheFull)",
    ),
    Reason(
        "LimitsMissing",
        "limits of work do not hold on the node: its kernel serves no cgroups, or not all controllers (condition LimitsMissing)",
        "boot it with the controllers that the message names; work runs there all the same",
    ),
    Reason("ReturnPending", "undrain or enable was asked for, but the node does not report healthy", "look at the node"),
)
"""Why a node is in the state it shows."""

ADMINISTRATION_REASONS: Final[tuple[Reason, ...]] = (
    Reason("InForce", "the spec is carried out", ""),
    Reason("NamespaceTaken", "a namespace stands there that is not this tenant's", "label it lattice.dev/tenant, or name another one"),
    Reason("NameTaken", "a role or binding of that name stands there that is not Lattice's", "delete or rename it"),
    Reason(
        "OptionsRefused", "options contradict each other; the last good ones stay in force", "change the options that the message names"
    ),
    Reason("WebhookAnswers", "the API server has every request judged by the admission webhook", ""),
    Reason(
        "WebhookFailedOpen",
        "the API server let requests pass that the admission webhook did not answer",
        "look at the webhook's log and load",
    ),
    Reason("NodesShared", "a group is at home in more than one vcluster", "give each group to one vcluster"),
    Reason("WeightsNormalised", "the weights do not sum to 1: each is divided by their sum", "`lattice admin vcluster get` shows both"),
    Reason("WeightsIgnored", "the weights are all 0: the balanced ones are in force", "give at least one weight above 0"),
    Reason("AllocationsNotFinal", "allocations of it are pending or running, or still hold nodes", "cancel them, or wait for their end"),
    Reason("BudgetNearlyExhausted", "80 % of a budget is used (an Event)", "`lattice usage` shows when it runs out"),
    Reason("BudgetExhausted", "a budget is used up (an Event)", "raise the budget, or wait until older use leaves its period"),
    Reason("NotInUse", "no allocation of it is pending or running", ""),
    Reason("DeletionWaits", "it is deleted once nothing uses it any more", "cancel its allocations, or wait for their end"),
)
"""Why a Tenant, VCluster or LatticeConfig is as it is."""

RESERVATION_REASONS: Final[tuple[Reason, ...]] = (
    Reason("Planned", "its nodes are held from the next window on", ""),
    Reason("Active", "a window is open", ""),
    Reason("Ended", "its last window is over", "delete it"),
    Reason(
        "NodesMissing",
        "fewer nodes exist, or fit, than it asks for",
        "name nodes that exist, or start their agents; the message has the numbers",
    ),
    Reason("Overlaps", "a reservation that was made earlier holds these nodes at the same time", "delete one of the two"),
    Reason("CalendarInvalid", "its times make no sense; it was made while the admission webhook was down", "delete it and make it again"),
)
"""Why a Reservation is as it is."""

DAG_REASONS: Final[tuple[Reason, ...]] = (
    Reason("Making", "its members are being made, and none starts before all of them exist", "wait"),
    Reason("MembersMade", "all members exist, or existed", ""),
    Reason("MembersRunning", "members wait or run", ""),
    Reason("Held", "spec.hold is set: no member starts", "`lattice dag release`"),
    Reason("Cancelling", "it was cancelled, and members are still ending", "wait"),
    Reason("Deleting", "it was deleted, and members are still ending", "wait"),
    Reason("Completed", "every member is final, and every failure was caught", ""),
    Reason("MemberFailed", "a member failed, and no Failure or Any successor of it ran", "`lattice dag status`; `lattice dag resubmit`"),
    Reason("Cancelled", "it was cancelled, or a member was, and no Any successor of that ran", "`lattice dag resubmit`"),
    Reason("MemberRefused", "the server, or admission, refused a member; all others are cancelled", "correct the member; submit it anew"),
    Reason(
        "NameTaken", "an Allocation that is not of this DAG has the name of a member", "delete that one, or rename the DAG; submit anew"
    ),
    Reason("DagInvalid", "it is no graph of members: it came in while the admission webhook was away", "the message names the field"),
)
"""Why a DAG is as it is."""

QUOTA_REASONS: Final[tuple[Reason, ...]] = (
    Reason("InForce", "the group takes part; the message says whether its min is guaranteed in full", ""),
    Reason("SpecInvalid", "an amount, a label or an annotation of it does not read", "the message names the field"),
    Reason("NameTaken", "another object declares a group of this name, and was made earlier", "rename one of the two"),
    Reason("BuiltInGroup", "the group exists without an object", "choose another name"),
    Reason("ParentUnknown", "the group above does not exist, or takes no part itself", "make it, or name another parent"),
    Reason("ParentIsLeaf", "the group above is no parent", "set its isParent to true"),
    Reason("ParentCycle", "the group is above itself", "give one of the groups of the message another parent"),
    Reason("TreeNotAtTop", "a group below another one cannot be the root of a tree", "move spec.tree to the first level"),
    Reason("MinAboveMax", "its min is above its max, or of a resource that max lacks; it is in force", "lower min or raise max"),
    Reason("ResourcesDiffer", "its max has not the resources of its parent's; it is in force", "add them to both, from the top"),
    Reason("MinSumAboveParent", "the mins below it are more than its own; it is in force", "lower a min below it, or raise its own"),
    Reason("BindingTaken", "a group made earlier has a tenant or namespace that it claims", "take it out of one of the two"),
    Reason("NodesMissing", "its tree selects no node", "change spec.tree.nodes, or wait for nodes that fit"),
    Reason("NodesShared", "a tree that was declared earlier divides nodes that this one selects", "give each node to one tree"),
    Reason("AboveRuntime", "it uses more than it may (condition Overused)", "wait: revocation brings it back where the tree has it on"),
    Reason("WithinRuntime", "it uses no more than it may (condition Overused)", ""),
    Reason(
        "QuotaReclaimPending",
        "an Event: the group of an allocation uses more than it may, and the delay has begun",
        "the message says until when",
    ),
)
"""Why a group of the quota tree is as it is."""
