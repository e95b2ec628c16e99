"""Reads the script of `spec.scriptFrom` for a node that starts work, and proves its digest; it is kept in memory for 30 s."""

from __future__ import annotations

import logging
from typing import Any, Final

from lattice.daemon.logs import event
from lattice.errors import Denied, NotFound, Rejected, Retry
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import CONFIG_MAPS
from lattice.scripts.digests import KEY, script_digest
from lattice.views.work import ScriptFrom
from lattice_gateway.memory import Kept, Once

log = logging.getLogger(__name__)

KEPT_SECONDS: Final = 30.0
"""How long a script is kept, so that all nodes of an attempt that run it get that of one reading."""
KEPT_BYTES: Final = 16 << 20

_Attempt = tuple[str, int]


class Scripts:
    """Reads ConfigMaps in tenants' namespaces, once for all nodes of an attempt."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._kept: Kept[_Attempt, str] = Kept(clock, KEPT_SECONDS, KEPT_BYTES, len)
        self._once: Once[_Attempt, str] = Once()

    async def text(self, key: _Attempt, namespace: str, source: ScriptFrom) -> str:
        """Returns the script that a ConfigMap of a namespace holds, if it has the digest of the spec; read once for an attempt (`key`) in
        30 s.

        Raises Rejected with the sentence why the work cannot start, Retry where the gateway may not read it yet; other errors of the API
        server as they are.
        """
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        return self._kept.keep(key, await self._once.run(key, lambda: self._read(key, namespace, source)))

    async def _read(self, key: _Attempt, namespace: str, source: ScriptFrom) -> str:
        """Returns the script; raises Rejected where ConfigMap or key are gone, or hold another text, Retry where the gateway may not read
        ConfigMaps yet.
        """
        where = f"ConfigMap {namespace}/{source.config_map}"
        try:
            found: dict[str, Any] = await self._cluster.get(CONFIG_MAPS, source.config_map, namespace)
        except NotFound as error:
            raise Rejected(f"{where} with the script of this work (spec.scriptFrom) is gone: submit the work again") from error
        except Denied as error:
            sentence = f"the gateway may not read ConfigMaps of namespace {namespace} yet: the operator grants it to a tenant's namespaces"
            raise Retry(sentence, reason="ScriptForbidden") from error
        text = (found.get("data") or {}).get(KEY)
        if text is None:
            raise Rejected(f"{where} has no key {KEY!r} with the script of this work (spec.scriptFrom): submit the work again")
        digest = script_digest(text)
        if digest != source.digest:
            raise Rejected(
                f"{where} was changed since this work was submitted: its key {KEY!r} has the digest {digest}, and spec.scriptFrom"
                f" asks for {source.digest}; submit the work again"
            )
        event(log, "ScriptRead", allocation=key[0], attempt=key[1], namespace=namespace, configMap=source.config_map, bytes=len(text))
        return str(text)
