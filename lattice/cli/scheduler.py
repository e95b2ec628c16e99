"""Whether the scheduler is there: its Lease says so, and since when it is silent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lattice.errors import LatticeError, NotFound
from lattice.kube.resources import LEASES
from lattice.units import parse_time
from lattice.views import Lease

if TYPE_CHECKING:
    from lattice.cli.console import Console

SYSTEM_NAMESPACE = "lattice-system"
DEFAULT_SECONDS = 15


@dataclass(frozen=True)
class Leadership:
    """Who leads, and the sentence about its silence; an empty sentence means that it is alive, or that nobody may look."""

    holder: str
    silent_since: str
    sentence: str


def judge_lease(lease: Lease | None, now: float) -> Leadership:
    """What a Lease says at this time; None is a Lease that does not exist."""
    if lease is None:
        return Leadership("", "", "the scheduler has never run on this cluster: no Lease lattice-scheduler")
    spec = lease.spec
    if not spec.holder_identity or not spec.renew_time:
        return Leadership("", spec.renew_time or "", "no scheduler leads: the Lease lattice-scheduler has no holder")
    silence = now - parse_time(spec.renew_time)
    if silence > max(spec.lease_duration_seconds, DEFAULT_SECONDS):
        sentence = f"the scheduler is silent since {spec.renew_time} ({int(silence)} s): nothing is placed until it is back"
        return Leadership(spec.holder_identity, spec.renew_time, sentence)
    return Leadership(spec.holder_identity, "", "")


def leadership(console: Console, name: str = "lattice-scheduler") -> Leadership:
    """The scheduler's Lease judged now; whoever may not read it is told nothing."""
    try:
        lease = console.cluster.get(LEASES, name, SYSTEM_NAMESPACE, type=Lease)
    except NotFound:
        return judge_lease(None, console.outside.now())
    except LatticeError:
        return Leadership("", "", "")
    return judge_lease(lease, console.outside.now())
