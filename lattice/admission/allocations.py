"""The checks of an Allocation in their order: when it is created, when it is changed, and when it is to get nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from lattice.admission.constraints import check_gpus, check_node_sets, check_resources
from lattice.admission.dependencies import check_dependencies
from lattice.admission.facts import Facts
from lattice.admission.leaves import check_ceiling, check_leaf, check_preemptible_label
from lattice.admission.limits import check_class, check_nodes, check_pending, check_quota, check_tasks, check_walltime
from lattice.admission.ownership import check_tenant, check_user, check_vcluster
from lattice.admission.reservations import check_reservation
from lattice.admission.software import check_software
from lattice.admission.submission import Submission, read_submission
from lattice.admission.timing import check_grace_period, check_window
from lattice.admission.updates import check_update
from lattice.admission.verdicts import Finding, Object, Refused
from lattice.admission.work import check_files, check_job_name, check_variables, check_work

ON_CREATION: Final[tuple[Callable[[Submission, Facts], Iterator[Finding]], ...]] = (
    check_tenant,
    check_user,
    check_vcluster,
    check_reservation,
    check_leaf,
    check_work,
    check_nodes,
    check_tasks,
    check_resources,
    check_gpus,
    check_node_sets,
    check_walltime,
    check_class,
    check_preemptible_label,
    check_grace_period,
    check_window,
    check_variables,
    check_files,
    check_software,
    check_job_name,
    check_dependencies,
    check_pending,
    check_quota,
    check_ceiling,
)
"""The checks of a new Allocation; those whose result depends on the moment come last."""

ON_PLACEMENT: Final = (check_tenant, check_vcluster, check_leaf, check_nodes, check_tasks, check_walltime, check_class)
"""The checks of an Allocation that is about to get nodes, against the limits of that moment."""


def judge_placement(asked: Submission, facts: Facts) -> Refused | None:
    """Returns the first reason why an Allocation may get no nodes now; None where it may.

    The scheduler asks it before a cycle. Checks whose facts its cache does not have are passed over.
    """
    for check in ON_PLACEMENT:
        for finding in check(asked, facts):
            if isinstance(finding, Refused):
                return finding
    return None


def judge_creation(obj: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for a new Allocation whose defaults are filled in."""
    asked = read_submission(obj)
    if isinstance(asked, Refused):
        yield asked
        return
    for check in ON_CREATION:
        yield from check(asked, facts)


def judge_change(old: Object, new: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for a change of an Allocation; none where its spec is unchanged.

    A new object that does not parse is refused; where only the old one does not, nothing is yielded, so that it can be repaired.
    """
    if old.get("spec") == new.get("spec"):
        return
    before, after = read_submission(old), read_submission(new)
    if isinstance(after, Refused):
        yield after
    elif not isinstance(before, Refused):
        yield from check_update(before, after, facts)
