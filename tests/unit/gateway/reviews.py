"""The fake cluster with authorisers: it answers TokenReviews and SubjectAccessReviews, and counts them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from lattice.kube.clock import Clock
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Resource


class ReviewingCluster(FakeCluster):
    """`tokens` maps a token to its user; `grants` holds (user, verb, resource[/subresource], name or *)."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.tokens: dict[str, str] = {}
        self.grants: set[tuple[str, str, str, str]] = set()
        self.reviews: list[str] = []
        self.reviewed: list[Mapping[str, str]] = []
        """What each SubjectAccessReview was about."""
        self.failures: list[Exception] = []
        """Errors of the next reviews, each of one."""
        self.leaks = 0
        """So many reviews are cancelled from inside."""

    async def create(self, resource: Resource, obj: Mapping[str, Any], namespace: str = "", **options: Any) -> Any:
        """Reviews are answered and not stored."""
        spec = obj.get("spec", {})
        if self.leaks:
            self.leaks -= 1
            raise asyncio.CancelledError
        if self.failures and resource in (TOKEN_REVIEWS, SUBJECT_ACCESS_REVIEWS):
            raise self.failures.pop(0)
        if resource == TOKEN_REVIEWS:
            self.reviews.append("token")
            user = self.tokens.get(spec["token"])
            return {**obj, "status": {"authenticated": user is not None, "user": {"username": user, "groups": ["system:authenticated"]}}}
        if resource == SUBJECT_ACCESS_REVIEWS:
            asked = spec["resourceAttributes"]
            self.reviewed.append(asked)
            what = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
            self.reviews.append(f"{spec['user']} {asked['verb']} {what} {asked['name']}")
            allowed = any((spec["user"], asked["verb"], what, name) in self.grants for name in (asked["name"], "*"))
            return {**obj, "status": {"allowed": allowed}}
        return await super().create(resource, obj, namespace, **options)
