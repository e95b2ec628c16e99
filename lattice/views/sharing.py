"""Makes equal parts of cached views one object: most work of a user asks for the same, most nodes are alike; pure.

Views are immutable, so that nobody can tell; a view of waiting work takes a fourth of its memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeVar, cast

from msgspec.structs import replace

from lattice.views.allocation import Allocation, AllocationSpec, AllocationStatus, Score
from lattice.views.cluster import Node, NodeSpec, NodeStatus
from lattice.views.meta import Metadata

Part = TypeVar("Part", bound=Hashable)
KEPT: Final = 4096
"""Parts that are remembered; when there are more, all are forgotten, and views that share one go on doing so."""
_BARE: Final = Allocation(metadata=Metadata(name=""))
_BARE_NODE: Final = Node(metadata=Metadata(name=""))
_DEFAULTS: Final[dict[Hashable, Hashable]] = {
    part: part
    for part in (
        _BARE.spec.environment, _BARE.spec.tasks, _BARE.spec.resources, _BARE.spec.lifecycle, _BARE_NODE.status.capabilities,
    )
}  # fmt: skip
"""The parts of work that says nothing about them, which are left out where a view is encoded: known from the start."""
_NOTHING: Final[dict[str, str]] = {}
"""The labels, annotations or tags of whatever has none; a view is never changed."""


class SharedParts:
    """Remembers parts of the views of one cache, and gives each equal part as the one that came first."""

    def __init__(self) -> None:
        self._known = dict(_DEFAULTS)
        self._mappings: dict[Hashable, object] = {}

    def allocation(self, one: Allocation) -> Allocation:
        """Returns an equal Allocation whose parts are those of former ones, where they are equal."""
        spec = one.spec if one.spec is _BARE.spec else self._spec(one.spec)
        status = one.status if one.status is _BARE.status else self._status(one.status)
        return Allocation(metadata=self._metadata(one.metadata), spec=spec, status=status)

    def node(self, one: Node) -> Node:
        """Returns an equal Node whose parts are those of former ones, where they are equal."""
        spec = one.spec if one.spec is _BARE_NODE.spec else self._node_spec(one.spec)
        status = one.status if one.status is _BARE_NODE.status else self._node_status(one.status)
        return Node(metadata=self._metadata(one.metadata), spec=spec, status=status)

    def _node_spec(self, spec: NodeSpec) -> NodeSpec:
        """Returns the spec of a node with shared parts."""
        return replace(
            spec,
            group=self._part(spec.group),
            switch=self._part(spec.switch),
            features=self._part(spec.features),
            hardware=self._part(spec.hardware),
        )

    def _node_status(self, status: NodeStatus) -> NodeStatus:
        """Returns the status of a node with shared parts."""
        return replace(
            status,
            state=self._part(status.state),
            since=self._part(status.since),
            conditions=tuple(map(self._part, status.conditions)),
            health=self._part(status.health),
            capabilities=self._part(status.capabilities),
            accepted=self._part(status.accepted),
            fingerprint=self._part(status.fingerprint),
            components=self._mapping(status.components),
            kernel=self._part(status.kernel),
            agent_version=self._part(status.agent_version),
            boot_id=self._part(status.boot_id),
            instance=self._part(status.instance),
            formats=self._mapping(status.formats),
        )

    def _mapping(self, mapping: dict[str, Part]) -> dict[str, Part]:
        """Returns the mapping that was the first with these entries in this order; an empty one is left as it is."""
        if not mapping:
            return mapping
        return cast("dict[str, Part]", self._mappings.setdefault(tuple(mapping.items()), mapping))

    def _metadata(self, meta: Metadata) -> Metadata:
        """Returns metadata whose parts are shared with equal ones; empty maps are one object."""
        return replace(
            meta,
            namespace=self._part(meta.namespace),
            creation_timestamp=self._part(meta.creation_timestamp),
            finalizers=self._part(meta.finalizers),
            labels=meta.labels or _NOTHING,
            annotations=meta.annotations or _NOTHING,
            owner_references=self._part(meta.owner_references),
        )

    def _spec(self, spec: AllocationSpec) -> AllocationSpec:
        """Returns a spec whose parts are shared with equal ones; empty tags are one object."""
        return replace(
            spec,
            tenant=self._part(spec.tenant),
            user=self._part(spec.user),
            project=self._part(spec.project),
            vcluster=self._part(spec.vcluster),
            tags=spec.tags or _NOTHING,
            environment=self._part(spec.environment),
            tasks=self._part(spec.tasks),
            resources=self._part(spec.resources),
            lifecycle=self._part(spec.lifecycle),
            quota=self._part(spec.quota),
            reservation=self._part(spec.reservation),
        )

    def _status(self, status: AllocationStatus) -> AllocationStatus:
        """Returns a status whose parts are shared with equal ones."""
        return replace(
            status,
            phase=self._part(status.phase),
            conditions=tuple(map(self._part, status.conditions)),
            nodes=self._part(status.nodes),
            submit_time=self._part(status.submit_time),
            scheduled_time=self._part(status.scheduled_time),
            expected_start=self._part(status.expected_start),
            score=self._score(status.score),
            software=self._part(status.software),
        )

    def _score(self, score: Score | None) -> Score | None:
        """Returns a score whose total and terms are shared with equal ones; None for None."""
        if score is None:
            return None
        return Score(total=self._part(score.total), terms={self._part(name): self._part(term) for name, term in score.terms.items()})

    def _part(self, part: Part) -> Part:
        """Returns the kept object that equals this one, or keeps this one; drops all but the defaults before that where KEPT are kept."""
        if len(self._known) + len(self._mappings) >= KEPT:
            self._known, self._mappings = dict(_DEFAULTS), {}
        return cast("Part", self._known.setdefault(part, part))
