"""The newest version of every Allocation that this process has seen, from the informer and from its own writes."""

from __future__ import annotations

from lattice.views.allocation import Allocation


class AllocationCache:
    """Allocations by uid; the reconciler of allocations alone changes it, everybody else reads."""

    def __init__(self) -> None:
        self.objects: dict[str, Allocation] = {}

    def get(self, uid: str) -> Allocation | None:
        """Returns the newest version of an allocation; None for an unknown uid."""
        return self.objects.get(uid)

    def keep(self, allocation: Allocation) -> None:
        """Stores a version that an informer or the answer to a write has shown, unless a newer one is known."""
        known = self.objects.get(allocation.metadata.uid)
        if known is None or int(allocation.metadata.resource_version) >= int(known.metadata.resource_version):
            self.objects[allocation.metadata.uid] = allocation

    def remove(self, uid: str) -> None:
        """Removes an allocation, by uid, whose object is gone; an unknown uid changes nothing."""
        self.objects.pop(uid, None)

    def shown_number(self, uid: str) -> int | None:
        """Returns the number that an allocation's status shows; None where it shows none yet, or the uid is unknown. Thread-safe."""
        allocation = self.objects.get(uid)
        return (allocation.status.number or None) if allocation is not None else None
