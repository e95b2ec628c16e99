"""The ledger's history as etcd itself kept it: every revision, read through etcd's own JSON gateway."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice.ledger.verify import verify, verify_step
from lattice.views.ledger import Ledger, LedgerStatus
from lattice_dev.site import LOOPBACK, Site

KEY = "/registry/lattice.dev/ledgers/lattice"


@dataclass(frozen=True)
class Revision:
    """One version of the object."""

    revision: int
    status: LedgerStatus | None


def read(site: Site, known: Sequence[Revision] = ()) -> list[Revision]:
    """Every version, oldest first, back to the object's creation; needs an instance without compaction.

    Those that are `known`, oldest first, are not read again.
    """
    pair = site.pair("etcd-ca", "kube-apiserver")
    context = ssl.create_default_context(cafile=str(site.authority("etcd-ca")))
    context.load_cert_chain(pair.certificate, pair.key)
    last = known[-1].revision if known else 0
    found: list[Revision] = []
    with closing(http.client.HTTPSConnection(LOOPBACK, site.ports["etcd"], timeout=30, context=context)) as connection:
        entry = _range(connection, 0)
        while entry is not None:
            revision = int(entry["mod_revision"])
            if revision == last:
                return [*known, *found[::-1]]
            found.append(Revision(revision, msgspec.json.decode(base64.b64decode(entry["value"]), type=Ledger).status))
            entry = _range(connection, revision - 1) if revision > int(entry["create_revision"]) else None
    return found[::-1]


def _range(connection: http.client.HTTPSConnection, revision: int) -> dict[str, Any] | None:
    body = {"key": base64.b64encode(KEY.encode()).decode(), **({"revision": str(revision)} if revision else {})}
    connection.request("POST", "/v3/kv/range", json.dumps(body))
    answer = json.loads(connection.getresponse().read())
    if "error" in answer:
        raise AssertionError(f"etcd cannot show {KEY} at revision {revision}: {answer['error']}")
    entries: list[dict[str, Any]] = answer.get("kvs", [])
    return entries[0] if entries else None


def faults(history: Sequence[Revision], names: Mapping[int, str]) -> list[str]:
    """What may stand in no version, as sentences.

    A node held twice, more than a limit allows, a seq missing, an epoch going back, a term without its epoch.
    """
    found: list[str] = []
    before: LedgerStatus | None = None
    for revision in history:
        status = revision.status
        if status is None:
            if before is not None:
                found.append(f"revision {revision.revision}: the status is gone")
            continue
        found += [f"revision {revision.revision}, seq {status.seq}: {fault}" for fault in verify(status, names)]
        if before is not None:
            found += [f"revision {revision.revision}: {fault}" for fault in _step(before, status)]
        before = status
    return found


def _step(before: LedgerStatus, after: LedgerStatus) -> list[str]:
    found = verify_step(before, after)
    same = after.seq == before.seq and after.commit == before.commit
    recovered = after.recoveries == before.recoveries + 1 and after.seq > before.seq
    if not same and not recovered and after.seq != before.seq + 1:
        found.append(f"seq {after.seq} follows {before.seq}")
    if after.epoch < before.epoch:
        found.append(f"epoch {after.epoch} follows {before.epoch}")
    if (after.term != before.term) != (after.epoch == before.epoch + 1):
        found.append(f"term {after.term} of epoch {after.epoch} follows term {before.term} of epoch {before.epoch}")
    if after.next_number < before.next_number:
        found.append(f"next number {after.next_number} follows {before.next_number}")
    return found
