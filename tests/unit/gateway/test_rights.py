"""Rights that are remembered: for the same identity alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lattice.daemon.clock import ManualClock
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import Resource
from lattice_gateway.identity import Identity
from lattice_gateway.rights import Action, Rights


class ScopedCluster(FakeCluster):
    """Its authoriser lets in only tokens whose scope is `full`."""

    async def create(self, resource: Resource, obj: Mapping[str, Any], namespace: str = "", **options: Any) -> Any:
        """The answer of a SubjectAccessReview."""
        return {**obj, "status": {"allowed": obj["spec"]["extra"].get("scopes") == ["full"]}}


async def test_a_token_of_narrower_scope_has_not_the_rights_that_its_users_other_token_had_a_moment_ago() -> None:
    rights, action = Rights(ScopedCluster(ManualClock()), ManualClock()), Action("get", "allocations", "run", "physics")
    whole, narrow = (Identity("alice", ("people",), "1", {"scopes": [scope]}) for scope in ("full", "none"))
    assert await rights.may(whole, action)
    assert not await rights.may(narrow, action)
    assert await rights.may(whole, action)
