"""Tells whether the scheduler is alive: by its Lease, and since when it is silent."""

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
    """Names the leader, and has the sentence about its silence: empty when it is alive, or when nobody may look."""

    holder: str
    silent_since: str
    sentence: str


def judge_lease(lease: Lease | None, now: float, who: str = "scheduler", meanwhile: str = "nothing is placed") -> Leadership:
    """Judges a Lease at this time; None is a Lease that does not exist."""
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
    """Judges a daemon's Lease now; a person who may not read it gets no sentence."""
    try:
        lease: Lease | None = console.cluster.get(LEASES, f"lattice-{who}", SYSTEM_NAMESPACE, type=Lease)
    except NotFound:
        lease = None
    except LatticeError:
        return Leadership("", "", "")
    return judge_lease(lease, console.outside.now(), who, meanwhile)


def with_silence(console: Console, error: Retry) -> Retry:
    """Returns the error of an unanswered question, and since when the scheduler is silent, where that is why."""
    sentence = leadership(console).sentence
    return Retry(f"{error.message}: {sentence}", reason=error.reason) if sentence else error
