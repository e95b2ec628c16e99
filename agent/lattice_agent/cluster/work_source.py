"""Reads the Allocation of a plan row from a gateway: for one node, or once for all hollow nodes of a process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import grpc.aio as aio
import msgspec

from lattice.daemon.mtls import GATEWAY_HOST, Files, client_credentials
from lattice.errors import Corrupt, Denied, LatticeError, NotFound, Retry
from lattice.ledger.plans import PlanRow
from lattice.rpc.v1 import gateway_pb2 as pb
from lattice.rpc.v1 import gateway_pb2_grpc as rpc
from lattice.scripts.digests import script_digest
from lattice.views.allocation import AllocationStatus
from lattice.views.meta import Metadata
from lattice.views.work import Work as Allocation

KEPT = 256
"""Allocations that a process of hollow nodes keeps."""
ANSWER_SECONDS = 10.0
OPTIONS = [
    ("grpc.ssl_target_name_override", GATEWAY_HOST),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 8 << 20),
]


@dataclass(frozen=True, slots=True)
class FetchedWork:
    """An Allocation as a gateway has read it; `status` is the JSON as stored, so that replacing the status loses no field.

    `variables` are the values of Secrets, kept in memory only; None: they were not asked for. `refusal` says why they, or the script of
    a ConfigMap, could not be had; else that script stands in the spec, for a node that runs it.
    """

    work: Allocation
    status: Mapping[str, Any]
    variables: Mapping[str, str] | None = field(default=None, repr=False)
    refusal: str = ""

    @property
    def version(self) -> int:
        """Returns the Allocation's resourceVersion as a number; a higher one is newer."""
        return int(self.work.metadata.resource_version or 0)

    def written(self, metadata: Metadata, status: Mapping[str, Any]) -> FetchedWork:
        """Returns this Allocation, without variables, with the status just written and the metadata that the API server answered."""
        known = msgspec.convert(status, AllocationStatus)
        return FetchedWork(msgspec.structs.replace(self.work, metadata=metadata, status=known), status)


class WorkSource(Protocol):
    """Reads the Allocation of a plan row; `GatewayWorkSource` is the implementation, `WorkCache` the one that hollow nodes share."""

    async def find_work(self, node: str, row: PlanRow, *, stale: str = "", variables: bool = False) -> FetchedWork:
        """Returns the Allocation at the row's generation or newer; with `stale`, at a newer resourceVersion than that.

        `variables` asks for the values of `environment.variablesFrom`, and the script of `scriptFrom`, too. Raises NotFound (it is gone,
        or the attempt is over), Denied (it is not this node's work), Retry (no gateway answers), Corrupt (an answer is no Allocation).
        """
        ...


class GatewayWorkSource:
    """Asks one gateway, and the next when that does not answer; its connection stays open."""

    def __init__(self, addresses: Sequence[str], files: Files) -> None:
        self._addresses = random.sample(list(addresses), len(addresses))
        self._files = files
        self._channel: aio.Channel | None = None
        self._stamp: object = None

    async def find_work(self, node: str, row: PlanRow, *, stale: str = "", variables: bool = False) -> FetchedWork:
        """Returns the Allocation, at the row's generation and newer than `stale`, from the first gateway that answers; `variables`: with
        the values of Secrets.

        Raises NotFound, Denied, Corrupt as a gateway's answer is, Retry where none answers.
        """
        request = pb.GetWorkRequest(
            node=node, uid=row.uid, attempt=row.attempt, generation=row.generation, namespace=row.namespace, name=row.name,
            stale=stale, variables=variables,
        )  # fmt: skip
        return read(await self._ask(request), variables=variables)

    async def _ask(self, request: pb.GetWorkRequest) -> pb.Work:
        """Asks each gateway once, beginning with the last that answered; returns the first answer.

        Raises NotFound or Denied as a gateway says so, Retry where none answers.
        """
        silent: aio.AioRpcError | None = None
        for _ in self._addresses:
            channel = self._connected()
            try:
                return await rpc.GatewayStub(channel).GetWork(request, timeout=ANSWER_SECONDS)
            except aio.AioRpcError as error:
                failure = _translated(error, self._addresses[0])
                if not isinstance(failure, Retry):
                    raise failure from error
                silent = error
                await self._leave(channel)
        assert silent is not None, "--gateway names at least one"  # noqa: S101 - the settings hold it
        raise _translated(silent, ", ".join(self._addresses)) from silent

    def _connected(self) -> aio.Channel:
        """Returns the open channel; a new one after a failure, or when the certificates were renewed."""
        stamp = self._files.stamp()
        if self._channel is None or stamp != self._stamp:
            self._channel, self._stamp = aio.secure_channel(self._addresses[0], client_credentials(self._files), options=OPTIONS), stamp
        return self._channel

    async def _leave(self, channel: aio.Channel) -> None:
        """Closes the channel and turns to the next gateway; calls still under way on it fail."""
        if channel is self._channel:
            self._channel = None
            self._addresses.append(self._addresses.pop(0))
            await channel.close(None)

    async def close(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            await self._channel.close(None)


def read(answer: pb.Work, *, variables: bool) -> FetchedWork:
    """Returns the Allocation that a gateway's answer holds, with the values of Secrets, and the script of a ConfigMap, where `variables`
    asked for them; a script that has not the digest of the spec is a refusal.

    Raises Corrupt where it holds none.
    """
    try:
        status = msgspec.json.decode(answer.allocation, type=_StatusOnly).status
        work = msgspec.json.decode(answer.allocation, type=Allocation)
        refusal, source = answer.refusal, work.spec.script_from
        if source is not None and answer.script:
            if script_digest(answer.script) == source.digest:
                work = msgspec.structs.replace(work, spec=msgspec.structs.replace(work.spec, script=answer.script))
            else:
                refusal = f"the script that a gateway gave is not that of spec.scriptFrom, {source.digest}"
        return FetchedWork(work, status, dict(answer.variables) if variables else None, refusal)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a gateway's answer is no allocation: {error}", reason="AnswerUndecodable") from error


class _StatusOnly(msgspec.Struct):
    status: dict[str, Any] = {}


def _translated(error: aio.AioRpcError, asked: str) -> LatticeError:
    """Returns the error of our tree for a gateway's refusal or silence: NotFound, Denied, else Retry."""
    reason, _, message = (error.details() or "").partition(": ")
    match error.code():
        case grpc.StatusCode.NOT_FOUND:
            return NotFound(message, reason=reason)
        case grpc.StatusCode.PERMISSION_DENIED:
            return Denied(message, reason=reason)
        case code:
            return Retry(f"no gateway gives the work ({asked}): {code.name}: {error.details()}", reason="GatewayAway")


class WorkCache:
    """Reads each Allocation once for all hollow nodes of a process.

    A kept Allocation is given again while its generation and version are what a row asks for; one that has been found outdated is not.
    """

    def __init__(self, works: WorkSource) -> None:
        self._works = works
        self._found: dict[str, FetchedWork] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def find_work(self, node: str, row: PlanRow, *, stale: str = "", variables: bool = False) -> FetchedWork:
        """Returns the Allocation as it was read before for a node of this process, where that is new enough and has the variables asked
        for, else reads it and keeps it.

        Raises NotFound, Denied, Corrupt, or Retry where no gateway answers.
        """
        lock = self._locks.setdefault(row.uid, asyncio.Lock())
        async with lock:
            found = self._found.get(row.uid)
            if found is None or not _serves(found, row, stale, variables):
                found = await self._works.find_work(node, row, stale=stale, variables=variables)
                self._found.pop(row.uid, None)
                self._found[row.uid] = found
                self._drop_old()
        return found

    def _drop_old(self) -> None:
        """Drops the Allocations longest kept beyond 256, and locks that nobody holds for Allocations that are not kept."""
        while len(self._found) > KEPT:
            self._found.pop(next(iter(self._found)))
        for uid in [uid for uid, lock in self._locks.items() if uid not in self._found and not lock.locked()]:
            del self._locks[uid]


def _serves(found: FetchedWork, row: PlanRow, stale: str, variables: bool) -> bool:
    """Tells whether a kept Allocation is as new, and has the variables, as asked for."""
    generation, newer = found.work.metadata.generation, not stale or found.version > int(stale)
    return generation >= row.generation and newer and (found.variables is not None or not variables)
