"""One scheduling cycle: pending work in order, a place or a reason each.

Order: class, then waiting time, then namespace/name (decision "equal scores"). Every later policy keeps this
interface: `decide` takes the pending work and the machine and gives outcomes; places are taken from the
machine as they are found, and the caller gives them back when the ledger refuses one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lattice.ledger.commit import over_quota
from lattice.scheduling.machine import UNHEARD, Census, Machine, Need
from lattice.scheduling.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.placement import place
from lattice.scheduling.scene import NOTHING, Scene
from lattice.scheduling.work import Candidate


def order(candidate: Candidate) -> tuple[int, float, str]:
    """The sort key of the queue: higher class, then longer waiting, then name."""
    return (-candidate.preemption_class, candidate.submitted, candidate.key)


def decide(scene: Scene, vcluster: str, candidates: Iterable[Candidate], now: float) -> Iterator[Outcome]:
    """One outcome for each candidate of a vcluster, in order; claims what it places in `scene` as it goes.

    The caller confirms a place with `scene.put_holder` or gives it back with `scene.drop_holder`.
    """
    machine = scene.machine
    free_before: dict[Need, int] = {}
    too_many: dict[Need, int] = {}
    explained: dict[tuple[Need, int], tuple[str, str]] = {}

    def explain(candidate: Candidate) -> Waiting:
        """Equal needs have equal reasons until something is placed."""
        asked = (candidate.need, candidate.minimum)
        if asked not in explained:
            explained[asked] = _explain(candidate, machine, free_before[candidate.need])
        return Waiting(candidate, *explained[asked])

    for candidate in sorted(candidates, key=order):
        waiting = _gate(candidate, scene, now)
        if waiting is not None:
            yield waiting
            continue
        free_before.setdefault(candidate.need, -1)
        if candidate.minimum >= too_many.get(candidate.need, 1 << 30):
            yield explain(candidate)
            continue
        if free_before[candidate.need] < 0:
            free_before[candidate.need] = machine.census(candidate.need).free
        nodes = place(machine, candidate.need, candidate.minimum, _room(candidate, scene))
        if nodes is None:
            too_many[candidate.need] = candidate.minimum
            yield explain(candidate)
            continue
        scene.claim(candidate, nodes, now)
        explained.clear()
        yield Placed(candidate, nodes)


def _room(candidate: Candidate, scene: Scene) -> int:
    """The most nodes it may get: its maximum, or what the tenant's quota leaves."""
    account = scene.accounts.get(candidate.tenant)
    if account is None or account.max_nodes is None:
        return candidate.maximum
    claimed = scene.uses.claimed.get(candidate.tenant, NOTHING)
    left = account.max_nodes - account.used_nodes - claimed.nodes
    return max(candidate.minimum, min(candidate.maximum, left))


def _gate(candidate: Candidate, scene: Scene, now: float) -> Waiting | None:
    """What keeps it from the nodes, whatever is free."""
    if candidate.blocked is not None:
        return Waiting(candidate, *candidate.blocked)
    if candidate.held:
        return Waiting(candidate, "Held", "spec.hold is set; `lattice release` lets it go")
    if candidate.not_before > now:
        return Waiting(candidate, "NotBefore", f"starts {candidate.not_before - now:.0f} s from now at the earliest", candidate.not_before)
    if candidate.back_off_until > now:
        seconds = candidate.back_off_until - now
        return Waiting(candidate, "RetryBackOff", f"the next attempt follows in {seconds:.0f} s", candidate.back_off_until)
    if not candidate.vcluster_known:
        return Waiting(candidate, "VClusterClosed", f'vCluster "{candidate.vcluster}" does not exist any more')
    if not candidate.vcluster_open:
        return Waiting(candidate, "VClusterClosed", f'vCluster "{candidate.vcluster}" is Closed: it accepts work and starts none')
    return _quota(candidate, scene)


def _quota(candidate: Candidate, scene: Scene) -> Waiting | None:
    account = scene.accounts.get(candidate.tenant)
    if account is None:
        return Waiting(candidate, "NotYetEvaluated", f'tenant "{candidate.tenant}" has no account in the ledger yet')
    claimed = scene.uses.claimed.get(candidate.tenant, NOTHING)
    nodes = account.used_nodes + claimed.nodes
    if account.max_nodes is not None and nodes + candidate.minimum > account.max_nodes:
        message = over_quota(candidate.tenant, "max_nodes", nodes, candidate.minimum, account.max_nodes)
        return Waiting(candidate, "WaitingForQuotaHeadroom", "waiting for quota headroom: " + message)
    running = account.used_allocations + claimed.running
    if account.max_allocations is not None and running + 1 > account.max_allocations:
        message = over_quota(candidate.tenant, "max_concurrent_allocations", running, 1, account.max_allocations)
        return Waiting(candidate, "WaitingForQuotaHeadroom", "waiting for quota headroom: " + message)
    return None


def _explain(candidate: Candidate, machine: Machine, free_before: int) -> tuple[str, str]:
    """Why no place was found, with the numbers."""
    census = machine.census(candidate.need)
    wanted = candidate.minimum
    if census.eligible < wanted:
        return "NeverFits", f"needs {_nodes(wanted)}, and {census.eligible} exist that fit its constraints"
    if census.usable < wanted:
        states = ", ".join(f"{count} {state}" for state, count in sorted(machine.states(candidate.need).items()) if state != "Ready")
        message = f"needs {_nodes(wanted)}; of {census.eligible} that fit, {census.usable} can be used ({states or UNHEARD})"
        return "NodesUnavailable", message
    if free_before >= wanted:
        message = f"needs {_nodes(wanted)}; {free_before} were free, and {free_before - census.free} of them went to work that comes first"
        return "BehindHigherPriority", message
    return "WaitingForNodes", _shortage(wanted, census)


def _shortage(wanted: int, census: Census) -> str:
    held = census.usable - census.free
    away = census.eligible - census.usable
    return f"needs {_nodes(wanted)}; of {census.eligible} that fit, {census.free} are free, {held} in use" + (
        f", {away} unavailable" if away else ""
    )


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
