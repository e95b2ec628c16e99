"""Identifies the caller: by a client certificate of the cluster's CA, or a bearer token that the API server knows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lattice.errors import Denied
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import TOKEN_REVIEWS
from lattice_gateway.memory import Memory

CACHE_SECONDS: Final = 10.0
AUTHENTICATED: Final = "system:authenticated"


@dataclass(frozen=True)
class Identity:
    """The user on whose behalf a request is answered, with everything that an authoriser may read."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, list[str]] = field(default_factory=dict)


class Authenticator:
    """Identifies callers; the API server's answers about tokens are kept for ten seconds."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._tokens: Memory[str, Identity | None] = Memory(clock, CACHE_SECONDS)

    async def identify(self, certificate: Mapping[str, Any] | None, authorization: str) -> Identity:
        """Returns the caller by his certificate, else by his bearer token, which the API server reviews (kept for 10 s).

        Raises Denied (Unauthenticated) where neither identifies him.
        """
        if certificate:
            return by_certificate(certificate)
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Denied("who asks is not known: send a client certificate of the cluster, or a bearer token", reason="Unauthenticated")
        key = hashlib.sha256(token.encode()).hexdigest()
        known = self._tokens.get(key)
        identity = known[0] if known else self._tokens.keep(key, await self._review(token))
        if identity is None:
            raise Denied("the bearer token is not valid, or no longer", reason="Unauthenticated")
        return identity

    async def _review(self, token: str) -> Identity | None:
        """Returns the owner of a token as the server knows it; None where it does not."""
        review = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": {"token": token}}
        status = (await self._cluster.create(TOKEN_REVIEWS, review)).get("status") or {}
        user = status.get("user") or {}
        if not status.get("authenticated") or not user.get("username"):
            return None
        return Identity(user["username"], tuple(user.get("groups") or ()), user.get("uid") or "", user.get("extra") or {})


def by_certificate(certificate: Mapping[str, Any]) -> Identity:
    """Returns the identity in a verified certificate: the common name is the user, each organisation a group, as in Kubernetes.

    Raises Denied (Unauthenticated) where there is no common name.
    """
    names = [pair for part in certificate.get("subject", ()) for pair in part]
    users = [value for key, value in names if key == "commonName"]
    if not users or not users[0]:
        raise Denied("the client certificate has no common name, which would be the user", reason="Unauthenticated")
    groups = [value for key, value in names if key == "organizationName"]
    return Identity(users[0], (*groups, AUTHENTICATED))
