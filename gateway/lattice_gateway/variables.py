"""Reads the values of `environment.variablesFrom` for a node that starts work; they are kept in memory for 30 s and written nowhere."""

from __future__ import annotations

import base64
import logging
import re
from binascii import Error as Undecodable
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lattice.daemon.logs import event
from lattice.errors import Denied, NotFound, Rejected, Retry
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import SECRETS
from lattice.views.work import VariablesFrom
from lattice_gateway.memory import Kept, Once

log = logging.getLogger(__name__)

KEPT_SECONDS: Final = 30.0
"""How long values are kept, so that all nodes of an attempt get those of one reading."""
KEPT_BYTES: Final = 16 << 20
MAX_VALUE: Final = 32768
MAX_BYTES: Final = 131072
"""Most bytes of names and values together, as for `environment.variables`."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Key = tuple[str, int]
Values = Mapping[str, str]


class Secrets:
    """Reads Secrets in tenants' namespaces, once for all nodes of an attempt."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._kept: Kept[Key, Values] = Kept(clock, KEPT_SECONDS, KEPT_BYTES, lambda values: sum(map(len, values.values())) + 1)
        self._once: Once[Key, Values] = Once()

    async def values(self, key: Key, namespace: str, sources: Sequence[VariablesFrom]) -> Values:
        """Returns the value of every variable that these Secrets of a namespace give, by name; read once for an attempt (`key`) in 30 s.

        Raises Rejected with the sentence why the work cannot start, Retry where the gateway may not read them yet; other errors of the API
        server as they are.
        """
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        return self._kept.keep(key, await self._once.run(key, lambda: self._read(key, namespace, sources)))

    async def _read(self, key: Key, namespace: str, sources: Sequence[VariablesFrom]) -> Values:
        """Returns the variables of all Secrets named; of equal names the last one counts.

        Raises Rejected where a Secret is missing or all are too large, Retry where the gateway may not read them yet.
        """
        found: dict[str, str] = {}
        names = [source.secret_ref for source in sources]
        for source in sources:
            try:
                secret = await self._cluster.get(SECRETS, source.secret_ref, namespace)
            except NotFound as error:
                raise Rejected(f"there is no Secret {namespace}/{source.secret_ref} (environment.variablesFrom)") from error
            except Denied as error:
                sentence = f"the gateway may not read Secrets of namespace {namespace} yet: the operator grants it to a tenant's namespaces"
                raise Retry(sentence, reason="SecretsForbidden") from error
            found |= variables(namespace, source, secret)
        size = sum(len(name) + len(value.encode()) for name, value in found.items())
        if size > MAX_BYTES:
            raise Rejected(f"the variables of Secrets {', '.join(names)} have {size} bytes together (limit: {MAX_BYTES})")
        event(log, "SecretsRead", allocation=key[0], attempt=key[1], namespace=namespace, secrets=",".join(names))
        return found


def variables(namespace: str, source: VariablesFrom, secret: Mapping[str, Any]) -> dict[str, str]:
    """Returns the variables of one Secret, by name, each key behind the source's prefix; pure.

    Raises Rejected naming a key that cannot be a variable, never its value.
    """
    found = {}
    for key, encoded in sorted((secret.get("data") or {}).items()):
        name, where = source.prefix + key, f"Secret {namespace}/{source.secret_ref}: key {key!r}"
        if not _NAME.fullmatch(name):
            raise Rejected(f"{where} makes no variable: {name!r} has other characters than letters, digits and _, or begins with a digit")
        try:
            value = base64.b64decode(encoded, validate=True).decode()
        except (Undecodable, ValueError):
            raise Rejected(f"{where} is no text in UTF-8: only text can be a variable") from None
        if "\0" in value:
            raise Rejected(f"{where} has a NUL character: it cannot be a variable")
        if len(value.encode()) > MAX_VALUE:
            raise Rejected(f"{where} has {len(value.encode())} bytes (limit of a variable: {MAX_VALUE})")
        found[name] = value
    return found
