"""`lattice replay capture`: writes what was submitted to the live system as JSON lines that `lattice replay` reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lattice.cli import exits
from lattice.cli.files import write_whole
from lattice.cli.render.text import plural
from lattice.errors import Denied, Rejected
from lattice.kube.resources import ALLOCATIONS, CONFIGS, ELASTIC_QUOTAS, NODES, RESERVATIONS, TENANTS, VCLUSTERS
from lattice.replay.capture import Seen, capture
from lattice.replay.events import lines_of
from lattice.scheduling.conversion.policies import policy_of, terms_of
from lattice.units import format_time, parse_duration, parse_time
from lattice.views import Allocation, Config, Node, Tenant, VCluster
from lattice.views.cluster import SchedulingOptions

if TYPE_CHECKING:
    from lattice.cli.console import Console

_SINCE: Final = "7d"


def run(console: Console, path: str | None) -> int:
    """Writes what was submitted since `--since` to the file `path` (None or `-`: standard output), warns of what is missing, and returns
    DONE.

    Raises Rejected for further words, or a time or file that cannot be used.
    """
    if len(console.args.words) > 1:
        raise Rejected("capture takes no argument: --since says from when, -o the file", reason="BadInput")
    now = console.outside.now()
    since = _since(console.args.since or _SINCE, now)
    log = capture(_read_objects(console), since, now)
    lines = [line + "\n" for line in lines_of(log)]
    if path is None or path == "-":
        console.outside.stdout.writelines(lines)
    else:
        write_whole(Path(path), (line.encode() for line in lines), "-o")
    open_ends = len(log.open)
    ends = f", {open_ends} of them have not ended and are not replayed" if open_ends else ""
    console.note(f"Captured {plural(len(log.jobs), 'allocation')} submitted since {format_time(since)}{ends}")
    unread = [f"{count} allocations {rule} are left out" for rule, count in log.left.counts.items()]
    console.warn([*unread, *([f"the trace is not whole: {log.missing}"] if log.missing else [])])
    return exits.DONE


def _since(text: str, now: float) -> float:
    """Returns a time given as a length before now, or as a time, seconds since the epoch. Raises Rejected where it is neither."""
    try:
        return now - parse_duration(text)
    except Rejected:
        return parse_time(text)


def _read_objects(console: Console) -> Seen:
    """Reads the objects of every tenant; raises Denied for a person who is no operator or administrator."""
    cluster = console.cluster
    try:
        tenants = cluster.list(TENANTS, type=Tenant).items
        vclusters = cluster.list(VCLUSTERS, type=VCluster).items
        nodes = cluster.list(NODES, type=Node).items
        configs = cluster.list(CONFIGS, type=Config).items
        allocations = cluster.list(ALLOCATIONS, "", type=Allocation).items
        reservations = cluster.list(RESERVATIONS, type=dict[str, Any]).items
        quotas = cluster.list(ELASTIC_QUOTAS, type=dict[str, Any]).items
    except Denied as error:
        raise Denied(f"a trace holds the work of every tenant, which you may not read: {error.message}", reason=error.reason) from error
    options = configs[0].spec.scheduling if configs else SchedulingOptions()
    targets = {one.metadata.name: terms_of(one).target for one in tenants}
    return Seen(
        allocations=allocations,
        nodes=nodes,
        tenants=tenants,
        vclusters=vclusters,
        policies={one.metadata.name: policy_of(one, options) for one in vclusters},
        shares={name: share for name, share in targets.items() if share is not None},
        unplayed={"reservations in advance": len(reservations), "elastic quotas": len(quotas)},
    )
