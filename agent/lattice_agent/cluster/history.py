"""Answers a recovery of the ledger: writes everything that the node has journaled into NodeHistory objects, page by page."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from lattice.daemon.logs import event
from lattice.errors import NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.resources import NODE_HISTORIES
from lattice.ledger import reports
from lattice.ledger.history import HistoryRow, pages_of
from lattice.views.cluster import NodeRecovery
from lattice.views.history import NodeHistory
from lattice_agent.attempts import KeptAttempt, Key
from lattice_agent.host.interface import Host
from lattice_agent.lifecycle.attempt import OVER, WALLTIME, Attempt, Stage, report_state, restored
from lattice_agent.members import first_failure

log = logging.getLogger(__name__)

WALLTIME_EXCEEDED = "WalltimeExceeded"


class HistoryWriter:
    """Answers each recovery of the ledger once a process; after a restart it writes the same pages again.

    `wanted` is the question in the node's status, None: there is none.
    """

    def __init__(self, node: str, *, cluster: Cluster, host: Host, attempts: Mapping[Key, Attempt]) -> None:
        self.wanted: NodeRecovery | None = None
        self._node = node
        self._cluster = cluster
        self._host = host
        self._attempts = attempts
        self._answered = ""

    @property
    def owed(self) -> bool:
        """Tells whether a recovery asks for this node's journal and has not been answered by this process."""
        return self.wanted is not None and self.wanted.id != self._answered

    async def write_owed(self) -> None:
        """Writes the pages that answer the recovery, where it is owed an answer; else does nothing.

        Passes on errors of the API server; the next call writes all pages again.
        """
        wanted = self.wanted
        if wanted is None or not self.owed:
            return
        kept = await self._host.history(wanted.since)
        rows = rows_of(kept, self._attempts)
        pages = pages_of(rows)
        for number, text in enumerate(pages):
            await self._write(wanted.id, number, len(pages), text)
        self._answered = wanted.id
        event(log, "HistoryTold", node=self._node, recovery=wanted.id, attempts=len(rows), pages=len(pages))

    async def _write(self, recovery: str, number: int, pages: int, text: str) -> None:
        """Writes one page of the answer into its NodeHistory object, which is made where it is missing; raises errors of the API server."""
        name = f"{self._node}.{number}"
        spec = {"node": self._node, "recovery": recovery, "page": number, "pages": pages, "made": int(self._host.made()), "rows": text}
        body: dict[str, Any] = {
            "apiVersion": NODE_HISTORIES.api_version, "kind": NODE_HISTORIES.kind, "metadata": {"name": name}, "spec": spec,
        }  # fmt: skip
        try:
            await self._cluster.patch(NODE_HISTORIES, name, {"spec": spec}, type=NodeHistory)
        except NotFound:
            await self._cluster.create(NODE_HISTORIES, body, type=NodeHistory)


def rows_of(kept: Iterable[KeptAttempt], attempts: Mapping[Key, Attempt]) -> list[HistoryRow]:
    """Returns a row for every attempt that the disk keeps, and for those of the plan that it does not and that are not over, sorted by uid
    and attempt.

    A directory without a journal and without processes gives none.
    """
    rows = {Key(*row.attempt_key): row for one in kept if (row := _of_disk(one, attempts.get(one.known.key))) is not None}
    for key, attempt in attempts.items():
        if key not in rows and attempt.row is not None and attempt.stage not in OVER:
            order = attempt.row
            rows[key] = HistoryRow(
                key.uid, key.attempt, report_state(attempt)[0], order.number, order.namespace, order.name, order.nodes
            )  # fmt: skip
    return [rows[key] for key in sorted(rows)]


def _of_disk(kept: KeptAttempt, attempt: Attempt | None) -> HistoryRow | None:
    """Returns the row of one attempt on the disk; the agent's own state is used where the attempt goes on. Its code is 0, too, where it had
    no tasks here.

    None: a directory without a journal and without processes, which never started anything.
    """
    known, work = kept.known, kept.known.work
    shown = attempt if attempt is not None and attempt.stage not in OVER else restored(known)
    if work is None and not known.alive and not known.populated:
        return None  # a directory without a journal has never started anything
    state, detail = report_state(shown)
    if shown.stage is Stage.WAITING and known.forgotten:
        state = reports.GONE
    failure = first_failure(shown.exits)
    record = known.exit
    code = 0 if shown.stage is Stage.ENDED and shown.exits and failure is None else None
    if shown.stage is Stage.ENDED and not shown.exits and shown.started:
        code = 0  # it had no tasks on this node
    if failure is not None and not failure.unknown:
        code = failure.code
    return HistoryRow(
        known.key.uid, known.key.attempt, state, work.number if work else 0, work.namespace if work else "", work.name if work else "",
        work.nodes if work else (), kept.prepared, shown.started, record.end if record is not None else 0.0, code,
        failure.signal if failure is not None else 0, failure.rank if failure is not None else 0,
        detail if state == reports.START_FAILED else WALLTIME_EXCEEDED if shown.ended_by == WALLTIME else "",
    )  # fmt: skip
