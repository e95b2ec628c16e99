"""Which objects of a kind ordinary users may read by name, as the server says of their rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lattice.kube.resources import SELF_SUBJECT_RULES_REVIEWS

if TYPE_CHECKING:
    from lattice.cli.console import Console


def names_readable(console: Console, plural: str, namespace: str = "default") -> list[str]:
    """The names that rules on this resource give, in order."""
    review = console.cluster.create(SELF_SUBJECT_RULES_REVIEWS, {"spec": {"namespace": namespace}}, type=dict[str, Any])
    rules = (review.get("status") or {}).get("resourceRules") or []
    return sorted({name for rule in rules if plural in rule.get("resources", ()) for name in rule.get("resourceNames", ())})
