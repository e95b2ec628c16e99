"""Tells whether scheduler or operator are alive, and if not, since when they are silent, by their Leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lattice.errors import LatticeError, NotFound, Retry
from lattice.kube.resources import LEASES
from lattice.units import parse_time
from lattice.views import Lease

if TYPE_CHECKING:
    from lattice.cli.console import Console

SYSTEM_NAMESPACE = "lattice-system"
DEFAULT_SECONDS = 15


@dataclass(frozen=True)
class Leadership:
    """The state of a daemon's Lease: its holder, since when it is silent, and a sentence on that.

    `sentence` is empty when the daemon is alive, or when the person may not read the Lease.
    """

    holder: str
    silent_since: str
    sentence: str


def judge_lease(lease: Lease | None, now: float, who: str = "scheduler", meanwhile: str = "nothing is placed") -> Leadership:
    """Returns the state of a daemon by its Lease at the time `now`; None: there is no Lease. It is silent once its renewal is older than
    the Lease's duration, 15 s at least.

    `meanwhile` says what does not happen without the daemon.
    """
    if lease is None:
        return Leadership("", "", f"the {who} has never run on this cluster: there is no Lease lattice-{who}")
    spec = lease.spec
    if not spec.holder_identity or not spec.renew_time:
        return Leadership("", spec.renew_time or "", f"no {who} leads: the Lease lattice-{who} has no holder")
    silence = now - parse_time(spec.renew_time)
    if silence > max(spec.lease_duration_seconds, DEFAULT_SECONDS):
        sentence = f"the {who} is silent since {spec.renew_time} ({int(silence)} s): {meanwhile} until it is back"
        return Leadership(spec.holder_identity, spec.renew_time, sentence)
    return Leadership(spec.holder_identity, "", "")


def leadership(console: Console, who: str = "scheduler", meanwhile: str = "nothing is placed") -> Leadership:
    """Reads and judges a daemon's Lease; the sentence is empty where it cannot be read, for whatever reason."""
    try:
        lease: Lease | None = console.cluster.get(LEASES, f"lattice-{who}", SYSTEM_NAMESPACE, type=Lease)
    except NotFound:
        lease = None
    except LatticeError:
        return Leadership("", "", "")
    return judge_lease(lease, console.outside.now(), who, meanwhile)


def with_silence(console: Console, error: Retry) -> Retry:
    """Returns the error of an unanswered question, completed by since when the scheduler is silent, if it is."""
    sentence = leadership(console).sentence
    return Retry(f"{error.message}: {sentence}", reason=error.reason) if sentence else error
