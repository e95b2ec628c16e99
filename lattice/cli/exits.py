"""The exit codes of `lattice`; they are part of its interface.

| code | meaning |
|---|---|
| 0 | done |
| 1 | refused, or failed |
| 2 | wrong usage or bad input |
| 3 | not yet: a wait timed out |
| 4 | not found |
| 5 | denied |
| 6 | the API server or the gateway could not be reached |
| 7 | some of several failed |
| 125 | `wait` and `submit --wait`: the work ended without a code of its own (cancelled, never started) |
| 130 | interrupted |

`wait` and `submit --wait` exit with the work's own code, 128+n where signal n ended it. `plan` exits with 0 where it
starts now, 3 where it would wait, 4 where it can never start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry, UnknownOutcome

if TYPE_CHECKING:
    from lattice.views import Allocation

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_YET: Final = 3
NOT_FOUND: Final = 4
DENIED: Final = 5
UNREACHABLE: Final = 6
SOME_FAILED: Final = 7
NO_CODE: Final = 125
INTERRUPTED: Final = 130

BAD_INPUT: Final = frozenset(
    {
        "BadDuration",
        "BadTime",
        "BadQuantity",
        "BadNodeSet",
        "BadRange",
        "BadNodeCount",
        "BadUid",
        "BadScript",
        "BadDirective",
        "BadOption",
        "UnknownOption",
        "ScriptTooLarge",
        "BadDocument",
        "BadTrace",
        "BadInventory",
        "BadReport",
        "BadWeights",
        "VClusterWithoutNodes",
        "BadWalltime",
        "BadPreemptionClass",
        "NodeListTooShort",
        "NotServed",
        "SecretRefused",
        "BadInput",
        "KubeconfigWrong",
        "ContextMissing",
        "CoresUnknown",
        "Ambiguous",
        "ParameterInvalid",
        "LabelInvalid",
        "LabelAmbiguous",
        "LabelTooWide",
        "NoCatalog",
    }
)
"""Reasons of refusals of a flag's value, by this program before it asks a server, or by the gateway."""


def of_error(error: LatticeError) -> int:
    """Returns the exit code for an error, by its class and reason: USAGE for bad input and an absent kubeconfig, NOT_FOUND, DENIED,
    UNREACHABLE (also for an unknown outcome), else FAILED.

    A denial by an admission webhook counts as FAILED.
    """
    if error.reason == "KubeconfigNotFound":
        return USAGE
    if isinstance(error, NotFound):
        return NOT_FOUND
    if isinstance(error, Denied):
        return FAILED if "denied the request:" in error.message else DENIED
    if isinstance(error, Retry | UnknownOutcome):
        return UNREACHABLE
    if isinstance(error, Rejected) and error.reason in BAD_INPUT:
        return USAGE
    return FAILED


def of_several(codes: list[int]) -> int:
    """Returns one code for several objects: their common code, else `SOME_FAILED`; `DONE` for none."""
    if not codes:
        return DONE
    return codes[0] if len(set(codes)) == 1 else SOME_FAILED


def of_work(allocation: Allocation) -> int:
    """Returns the exit code for ended work: 0 where it completed, its own code where it failed with one other than 0, else `NO_CODE`
    (cancelled, ended without one).
    """
    status = allocation.status
    if status.phase == "Completed":
        return DONE
    if status.phase == "Failed" and status.exit is not None and status.exit.code:
        return status.exit.code
    return NO_CODE
