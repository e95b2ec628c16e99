"""Checks a new DAG: its graph, its size, and each member as the Allocation that it becomes; the operator judges members by it, too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from lattice.admission.allocations import ON_CREATION
from lattice.admission.defaults import fill_allocation
from lattice.admission.dependencies import check_dependencies
from lattice.admission.facts import Facts
from lattice.admission.forms import misshapen
from lattice.admission.limits import check_pending
from lattice.admission.submission import malformed, part, read_submission
from lattice.admission.verdicts import Caution, Finding, Object, Refused, Verdict, conclude
from lattice.errors import Rejected
from lattice.units import parse_duration
from lattice.views import Tenant
from lattice.views.dag import Dag, Member
from lattice.workflow.dags import MOST_MEMBERS, check_graph
from lattice.workflow.edges import LONGEST_DELAY
from lattice.workflow.members import check_specs, member_object

MEMBERS_FINALIZER: Final = "lattice.dev/members"
"""The finalizer that keeps a deleted DAG until its members are gone."""
MOST_BYTES: Final = 1024 * 1024
"""Most bytes of a DAG's spec as JSON: with its status it stays below the 1.5 MiB of etcd."""
ON_MEMBERS: Final = tuple(check for check in ON_CREATION if check not in (check_dependencies, check_pending))
"""The checks of a member: edges are judged with the graph, and what waits is counted once for all."""


def fill(obj: Object, facts: Facts) -> Object:
    """Returns a new DAG with user, tenant and finalizer filled in where they are absent; a spec that is no map is returned as it is."""
    if not isinstance(obj.get("spec"), dict):
        return obj  # the schema refuses it with the path
    metadata, spec = dict(part(obj, "metadata")), dict(part(obj, "spec"))
    for name, value in (("user", facts.requester.user), ("tenant", facts.namespace_tenant or "")):
        if value and spec.get(name) is None:
            spec[name] = value
    finalizers = metadata.get("finalizers") or []
    if MEMBERS_FINALIZER not in finalizers:
        metadata["finalizers"] = [*finalizers, MEMBERS_FINALIZER]
    return {**obj, "metadata": metadata, "spec": spec}


def read_dag(obj: Object) -> Dag | Refused:
    """Returns a DAG typed, or the refusal of the first field whose type is wrong."""
    metadata = part(obj, "metadata")
    named = {"name": str(metadata.get("name") or ""), "namespace": str(metadata.get("namespace") or "")}
    try:
        return msgspec.convert({"metadata": named, "spec": obj.get("spec") or {}}, Dag)
    except msgspec.ValidationError as error:
        return malformed(error, "")


def judge(obj: Object, facts: Facts) -> Iterator[Finding]:
    """Yields the refusals and warnings of a new DAG whose defaults are filled in; the first refusal of the graph ends them."""
    dag = read_dag(obj)
    if isinstance(dag, Refused):
        yield dag
        return
    refused = refused_graph(dag, facts.max_dag_size)
    if refused is not None:
        yield refused
        return
    yield from _cautions(dag)
    for index, member in enumerate(dag.spec.members):
        verdict = judge_member(dag, member, facts)
        if isinstance(verdict, Refused):
            yield at_member(index, member.name, verdict)
            return
        yield from (Caution(f'member "{member.name}": {warning}') for warning in verdict.warnings)
    yield from _check_waiting(dag, facts)


def refused_graph(dag: Dag, most: int | None = None) -> Refused | None:
    """Returns the refusal of a DAG that is no graph, or whose members say what they may not; None: it is one.

    `most`: the site's limit of its members; None: the default.
    """
    size = len(json.dumps(msgspec.to_builtins(dag.spec), separators=(",", ":")))
    if size > MOST_BYTES:
        hint = "put long scripts into files on the nodes, or what members have in common into spec.defaults"
        return Refused("DagTooLarge", f"the spec of the DAG has {size} bytes as JSON (limit: {MOST_BYTES})", "spec", hint)
    try:
        check_graph(dag.spec.members, MOST_MEMBERS if most is None else most)
        check_specs(dag)
        for index, member in enumerate(dag.spec.members):
            for place, edge in enumerate(member.depends_on):
                _check_delay(f"spec.members[{index}].dependsOn[{place}].delay", edge.delay)
    except Rejected as error:
        return Refused(error.reason, error.message, (*error.fields, "spec.members")[0])
    return None


def _check_delay(field: str, delay: str | None) -> None:
    """Raises Rejected for a delay that does not read, or is longer than any may be."""
    try:
        seconds = parse_duration(delay) if delay else 0.0
    except Rejected as error:
        raise Rejected(f"{field}: {error.message}", reason="DurationInvalid", fields=(field,)) from error
    if seconds > LONGEST_DELAY:
        raise Rejected(f"{field} is {delay} (limit: 366d). Hint: set a shorter one", reason="DurationInvalid", fields=(field,))


def judge_member(dag: Dag, member: Member, facts: Facts) -> Verdict:
    """Returns the verdict on a member: its Allocation with every default filled in, or the refusal, whose field is one of that Allocation.

    Members queue where the hard quota is used up, whatever the tenant says; more than the limit itself is refused.
    """
    obj = member_object(dag, member)
    refused = misshapen("Allocation", {}, obj)
    if refused is not None:
        return refused
    facts = replace(facts, tenants=_queueing(facts.tenants, dag.spec.tenant))
    filled = fill_allocation(obj, facts)
    asked = read_submission(filled)
    if isinstance(asked, Refused):
        return asked
    return conclude(filled, (finding for check in ON_MEMBERS for finding in check(asked, facts)))


def _queueing(tenants: Mapping[str, Tenant] | None, name: str) -> Mapping[str, Tenant] | None:
    """Returns the tenants, of which the one of this name lets work wait when its quota is used up."""
    tenant = (tenants or {}).get(name)
    if tenants is None or tenant is None or tenant.spec.quota.on_exceeded == "Queue":
        return tenants
    quota = msgspec.structs.replace(tenant.spec.quota, on_exceeded="Queue")
    return {**tenants, name: msgspec.structs.replace(tenant, spec=msgspec.structs.replace(tenant.spec, quota=quota))}


def at_member(index: int, name: str, refused: Refused) -> Refused:
    """Returns the refusal of a member as one of its DAG: sentence and field say which member it is."""
    field = f"spec.members[{index}].{refused.field}" if refused.field.startswith("spec") else f"spec.members[{index}]"
    return replace(refused, sentence=f'member "{name}": {refused.sentence}', field=field)


def _cautions(dag: Dag) -> Iterator[Caution]:
    """Yields a warning for each Success of a service, which does not end by itself."""
    kinds = {
        member.name: str(part(member.spec, "lifecycle").get("type") or part(dag.spec.defaults, "lifecycle").get("type") or "Bounded")
        for member in dag.spec.members
    }
    for member in dag.spec.members:
        for edge in member.depends_on:
            if edge.condition == "Success" and kinds[edge.ref] == "Unbounded":
                sentence = "is a service, which does not end by itself: Success may never be met"
                yield Caution(f'member "{member.name}": "{edge.ref}" {sentence}')


def _check_waiting(dag: Dag, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal where the members would make more work wait than the tenant, or each of its users, may have."""
    pending, more = facts.pending, len(dag.spec.members)
    if pending is None:
        return
    for who, current, limit in (
        (f'user "{dag.spec.user}" of tenant "{dag.spec.tenant}"', pending.user, pending.most_of_user),
        (f'tenant "{dag.spec.tenant}"', pending.tenant, pending.most_of_tenant),
    ):
        if current + more > limit:
            sentence = f"DAG rejected: {who} would exceed max_pending (current: {current}, requested: {more}, limit: {limit})"
            hint = "wait until some have started, split the DAG, or ask an admin to raise maxPending"
            yield Refused("TooManyPending", sentence, "spec.members", hint)
