"""Makes the request to run ended work once more: what has ended stays ended, so a new object does it again (decision "final is final")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ASKED_OF_ONE_RUN: Final = ("cancel", "hold", "requeueAttempt", "rerunOf", "dependsOn", "dependsOnMode", "onUnmet")
"""Fields of spec that were about the ended work alone."""
MOMENTS: Final = ("notBefore", "deadline")
"""Fields of spec.lifecycle that name moments, which have passed."""
QUOTA_LABELS: Final = "quota.scheduling.koordinator.sh/"


def rerun(ended: Mapping[str, Any], *, hold: bool = False) -> dict[str, Any]:
    """Returns a new Allocation, without a name, that asks for what an ended one did, and names it in `spec.rerunOf`; `hold`: it waits until
    it is released.

    What it depended on was answered before and is left out, but for its mutexes; so are times, labels and annotations, except the labels
    that name a quota.
    """
    metadata, asked = ended["metadata"], ended["spec"]
    spec = {name: value for name, value in asked.items() if name not in ASKED_OF_ONE_RUN}
    mutexes = [edge for edge in asked.get("dependsOn") or () if edge["condition"] == "Mutex"]
    if mutexes:
        spec["dependsOn"] = mutexes
    if "lifecycle" in spec:
        spec["lifecycle"] = {name: value for name, value in spec["lifecycle"].items() if name not in MOMENTS}
    if hold:
        spec["hold"] = True
    spec["rerunOf"] = str((ended.get("status") or {}).get("number") or metadata["name"])
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if name.startswith(QUOTA_LABELS)}
    kept = {"namespace": metadata["namespace"]} | ({"labels": labels} if labels else {})
    return {"apiVersion": ended["apiVersion"], "kind": ended["kind"], "metadata": kept, "spec": spec}
