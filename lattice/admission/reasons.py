"""The closed list of reasons for which admission refuses; the words are part of the interface, the sentences are not."""

from __future__ import annotations

from typing import Final

from lattice.models.reasons import Reason

REFUSALS: Final[tuple[Reason, ...]] = (
    Reason("Malformed", "a field has the wrong type", "`kubectl explain` shows the type of each field"),
    Reason("TenantUnknown", "the tenant does not exist, or the namespace belongs to none", "submit in a namespace of your tenant"),
    Reason("TenantMismatch", "spec.tenant is not the tenant of the namespace", "submit in a namespace of that tenant"),
    Reason("TenantPaused", "a hard quota of the tenant is 0", "ask the operators"),
    Reason("UserMismatch", "spec.user is another user, and the requester lacks the verb runas", "leave spec.user out"),
    Reason("VClusterNotFound", "the vcluster does not exist", "name one of the list"),
    Reason("VClusterRequired", "several vclusters are possible, or none", "set spec.vcluster"),
    Reason("VClusterNotAllowed", "the tenant may not use the vcluster", "name one of the list"),
    Reason("NodesInvalid", "spec.resources.nodes is no number and no range", "write 64, or 32-128"),
    Reason("NodesAboveLimit", "more nodes than the vcluster allows one allocation", "ask for fewer nodes"),
    Reason("NodeSetInvalid", "a node set does not parse", "write for example nid[001-064],gpu7"),
    Reason("NodeListTooSmall", "the node list names fewer nodes than are asked for", "name more nodes"),
    Reason("ConstraintsContradict", "two constraints cannot hold together", "the sentence names both fields"),
    Reason("QuantityInvalid", "a quantity does not parse", "write for example 128Gi"),
    Reason("DurationInvalid", "a duration does not parse, or is too short", "write for example 30m or 72h"),
    Reason("TimeInvalid", "a time or time zone does not parse", "write for example 2026-12-01T08:00:00Z, or Europe/Zurich"),
    Reason("WalltimeRequired", "a Bounded allocation has no walltime, and its vcluster has no default", "set spec.lifecycle.walltime"),
    Reason("WalltimeAboveLimit", "the walltime is above the vcluster's maximum", "ask for less"),
    Reason("WalltimeExtension", "a longer walltime needs the verb extend or manage on the tenant", "ask an admin of the tenant"),
    Reason("DeadlineBeforeStart", "the deadline is not after notBefore", "set a later deadline"),
    Reason("ClassInvalid", "the preemption class is outside 0 to 10", "choose 0 to 10"),
    Reason("ClassAboveLimit", "the preemption class is above the tenant's highest", "choose a lower class"),
    Reason("QuotaExceeded", "a hard quota of the tenant would be exceeded", "wait for running work to end, or ask for more quota"),
    Reason("WorkMissing", "neither entrypoint nor script is given, or both", "give exactly one of them"),
    Reason("EntrypointInvalid", "the entrypoint is empty or does not split into words", "quote it as for a shell"),
    Reason("ScriptInvalid", "the script has no #! line, CRLF line ends, NUL, is no UTF-8 or too large", "the sentence names the line"),
    Reason("VariableInvalid", "an environment variable cannot be set", "the sentence names the variable"),
    Reason("WorkdirInvalid", "the working directory is not an absolute path", "write it from /"),
    Reason("OutputInvalid", "an output file's pattern is not known", "use %j %x %u %A %a %N %n %%"),
    Reason("JobNameInvalid", "tags.name has a '/', a control character or blanks at its ends", "choose another name"),
    Reason("RecurrenceInvalid", "the recurrence leaves no window, overlaps itself, or does not read", "the sentence names the field"),
    Reason("ReservationInPast", "the reservation begins before now, or its last window is over", "choose a later start"),
    Reason("ReservationOverlaps", "another reservation holds these nodes at the same time", "choose other nodes or another time"),
    Reason("NodesBusy", "work may run into the first window", "begin later, or set spec.ignoreRunning"),
    Reason("ReservationUnknown", "the reservation does not exist", "`lattice reservation list` shows them"),
    Reason("ReservationNotAllowed", "the reservation does not admit this user, tenant or vcluster", "leave spec.reservation out"),
    Reason("ReservationTooSmall", "the work needs more nodes or time than a window of the reservation has", "the sentence has the limit"),
    Reason("ReservationEnded", "the last window of the reservation is over", "leave spec.reservation out"),
    Reason("Final", "the allocation has ended", "submit the work again"),
    Reason("Immutable", "the field cannot be changed after creation", "cancel this allocation and submit a new one"),
    Reason("CancelUnset", "spec.cancel cannot be taken back", "submit the work again"),
    Reason("NotPending", "the field can be changed only while the allocation is pending", "cancel it and submit again"),
    Reason("NamespaceTaken", "the namespace belongs to another tenant", "name another namespace"),
    Reason("NamespaceReserved", "the namespace belongs to the system", "name another namespace"),
    Reason("AccessInvalid", "a member of the tenant stands for everybody", "name a group of your identity provider"),
    Reason("PartitionTaken", "another vcluster has this partition name", "choose another name"),
    Reason("GroupTaken", "the group is at home in another vcluster", "take it out there first"),
    Reason(
        "WeightsInvalid", "a weight is negative or no quantity, all are 0, or a profile is named as well", "the sentence names the weight"
    ),
    Reason("BudgetInvalid", "a share or allowance of a budget makes no sense", "the sentence names the limit"),
    Reason("TooManyPending", "the user has as many waiting allocations in the vcluster as it allows", "wait until some have started"),
    Reason("InUse", "allocations that have not ended need it", "wait for them, or cancel them"),
    Reason("OptionInvalid", "an option's value makes no sense beside the others", "the sentence names the limit"),
    Reason("ReasonRequired", "an operator's wish has no reason", "say why, for those who read it later"),
)
"""Why admission refuses, in the order of the documentation."""

REFUSAL_WORDS: Final = frozenset(reason.word for reason in REFUSALS)
