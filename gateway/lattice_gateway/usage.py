"""Answers `usage` and `history` for people, limited to what each may see: records from a cache, the rest from the scheduler."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from lattice.accounting.answers import Unsettled
from lattice.accounting.budgets import Budgets, budgets_of
from lattice.accounting.charges import STATES, Charge
from lattice.accounting.records import Page, Records, word
from lattice.accounting.reports import DAY, MOST_DAYS, RATE_DAYS, Among, Asked, Reach, charges_since, history_report, usage_report
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import ALLOCATIONS, TENANTS, USAGE_RECORDS
from lattice.units import format_time, is_digits, parse_duration, parse_time
from lattice.views import Tenant
from lattice.views.usage import UsageRecord
from lattice_gateway.identity import Identity
from lattice_gateway.rights import ACTING_FOR_OTHERS, Action, Rights
from lattice_gateway.scheduler import Scheduler

log = logging.getLogger(__name__)

USAGE: Final = "/usage"
USAGE_OF_TENANT: Final = "/tenants/{tenant}/usage"
"""The path as the book spells it (chapter "Internal Budget Ledger", "API Access")."""
HISTORY: Final = "/history"
DEFAULT_DAYS: Final = 30
DEFAULT_ROWS: Final = 100
MOST_ROWS: Final = 10_000
CATCH_UP_SECONDS: Final = 2.0
"""How long an answer waits until the cache has the records that the scheduler has read."""
_WHO: Final = ("tenant", "user", "project")
_NUMBERS: Final = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?", re.ASCII)
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


@dataclass(frozen=True)
class _Sight:
    """The rows that a reader may see for one question: the question, narrowed to his rights, and the tenants whose records are read."""

    asked: Asked
    tenants: frozenset[str] | None
    """None: all tenants."""

    def query(self, tenants: Iterable[str]) -> dict[str, str]:
        """Returns the parameters of the question to the scheduler, with these tenants beside the reader's own; empty: all work."""
        if self.tenants is None:
            return {}
        query = {"tenants": ",".join(sorted(self.tenants.union(tenants))), "user": self.asked.user}
        return {key: value for key, value in query.items() if value}


class UsageDesk:
    """Answers `usage` and `history`; the `Gateway` runs its `informer` of UsageRecords."""

    def __init__(self, cluster: Cluster, clock: Clock, rights: Rights, scheduler: Scheduler) -> None:
        self._records = Records()
        self.informer: Informer[UsageRecord] = Informer(
            cluster, USAGE_RECORDS, type=UsageRecord, clock=clock, on_change=self._on_record, freeze=True
        )
        self._cluster = cluster
        self._clock = clock
        self._rights = rights
        self._scheduler = scheduler

    async def usage(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with hours and budgets of the tenants or user that the request names, limited to what the reader may see; where no
        scheduler answers, it says what is missing.

        Raises Denied where he may see nothing of it, Rejected for a bad parameter, NotFound for an unknown tenant, Retry until the usage
        records have been read.
        """
        asked = _asked({**request.query, **request.match_info}, identity, ("days",))
        days = _whole("days", request.query.get("days", ""), DEFAULT_DAYS, MOST_DAYS)
        sight = await self._sight(identity, asked)
        event(log, "UsageAsked", tenant=asked.tenant, user=identity.user)
        now = self._clock.now()
        budgets = await self._budgets(identity, sight)
        begins = [now - days * DAY, now - RATE_DAYS * DAY, *(one.period.begin(now) for one in budgets.values())]
        charges, incomplete, pages = await self._gather(sight, budgets)
        reach = Reach(min(begins), None if sight.tenants is None else sight.tenants | budgets.keys(), sight.asked.user)

        def answered() -> bytes:
            """Returns the report on usage as JSON."""
            found = charges_since(pages, charges, reach, now)
            return msgspec.json.encode(usage_report(found, sight.asked, now - days * DAY, now, budgets, incomplete))

        return _json(await asyncio.to_thread(answered))

    async def history(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers which work ran, how long, and how it ended: the reader's own, or that of others where he may see it; where no scheduler
        answers, it says what is missing.

        Raises Denied where he may not, Rejected for a bad parameter, NotFound for an unknown tenant, Retry until the usage records have
        been read.
        """
        asked = _asked(request.query, identity, ("since", "until", "state", "limit", "number", "name"))
        now = self._clock.now()
        among = _among(request.query, now)
        sight = await self._sight(identity, asked)
        if not sight.asked.names and not sight.asked.user:
            own = Asked(identity.user, asked.tenant, identity.user, asked.project)
            sight = _Sight(own, frozenset())
        event(log, "HistoryAsked", tenant=asked.tenant, user=identity.user)
        charges, incomplete, pages = await self._gather(sight)
        reach = Reach(among.since, sight.tenants, sight.asked.user)

        def answered() -> bytes:
            """Returns the report on ended attempts as JSON."""
            return msgspec.json.encode(history_report(charges_since(pages, charges, reach, now), sight.asked, among, now, incomplete))

        return _json(await asyncio.to_thread(answered))

    # -- who may see what -----------------------------------------------------------------------------

    async def _sight(self, identity: Identity, asked: Asked) -> _Sight:
        """Returns what the reader may see of his question; raises Denied where he asks for others' work without the right to it.

        Raises NotFound for an unknown tenant where he may see everybody's work there.
        """
        everything = await self._rights.may(identity, Action("list", ALLOCATIONS.plural, ""))
        names = everything or bool(asked.tenant and await self._acts_for(identity, asked.tenant))
        asked = Asked(asked.reader, asked.tenant, asked.user, asked.project, names)
        if names:
            await self._known(asked.tenant)
            return _Sight(asked, frozenset({asked.tenant}) if asked.tenant else None)
        if asked.user and asked.user != identity.user:
            of = f'tenant "{asked.tenant}"' if asked.tenant else "all tenants: name one with --tenant"
            raise Denied(
                f'the usage of user "{asked.user}" is read by that user and by admins of the tenant; "{identity.user}" is no admin of {of}',
                reason="UsageForbidden",
            )
        if asked.user or not asked.tenant:
            own = Asked(identity.user, asked.tenant, identity.user, asked.project)
            return _Sight(own, frozenset())
        if not await self._is_member(identity, asked.tenant):
            raise Denied(
                f'"{identity.user}" may not read the usage of tenant "{asked.tenant}": its members may; ask an admin of the tenant',
                reason="UsageForbidden",
            )
        return _Sight(asked, frozenset({asked.tenant}))

    async def _known(self, tenant: str) -> None:
        """Raises NotFound for a tenant that neither exists nor has a usage record: its name is mistyped. Empty: nothing is checked."""
        if not tenant or any(page.tenant == tenant for page in self._records.pages.values()):
            return
        try:
            await self._cluster.get(TENANTS, tenant, type=Tenant)
        except NotFound as error:
            sentence = f'there is no tenant "{tenant}", and no usage record names one; `kubectl get tenants` lists them'
            raise NotFound(sentence, reason="TenantUnknown") from error

    async def _acts_for(self, identity: Identity, tenant: str) -> bool:
        """Tells whether a caller may act for others of a tenant."""
        for verb in ACTING_FOR_OTHERS:
            if await self._rights.may(identity, Action(verb, TENANTS.plural, tenant)):
                return True
        return False

    async def _is_member(self, identity: Identity, tenant: str) -> bool:
        """Tells whether a caller may read a tenant."""
        return await self._rights.may(identity, Action("get", TENANTS.plural, tenant))

    async def _budgets(self, identity: Identity, sight: _Sight) -> dict[str, Budgets]:
        """Returns the budgets of the tenants in sight; for the reader's own work, of those that it is charged to and that he may get.
        Tenants that are gone are left out.
        """
        if sight.tenants is None:
            listing = await self._cluster.list(TENANTS, type=Tenant)
            return {tenant.metadata.name: budgets_of(tenant) for tenant in listing.items}
        names = set(sight.tenants)
        if not names and sight.asked.tenant:
            names = {sight.asked.tenant}
        elif not names:
            mark = f" {word(sight.asked.user)} "
            charges, _, pages = await self._gather(sight)
            names = {charge.tenant for charge in charges} | {page.tenant for page in pages if mark in page.text}
        found = {}
        for name in sorted(names):
            if name in sight.tenants or await self._is_member(identity, name):
                try:
                    found[name] = budgets_of(await self._cluster.get(TENANTS, name, type=Tenant))
                except NotFound:
                    continue
        return found

    # -- what there is --------------------------------------------------------------------------------

    async def _gather(self, sight: _Sight, tenants: Iterable[str] = ()) -> tuple[list[Charge], str, list[Page]]:
        """Returns the unsettled charges, a sentence on what is missing (empty: nothing), and the record pages, which are read after the
        scheduler was asked, so that a charge settled in between is not lost.

        Raises Retry where the records have not been read yet.
        """
        if not self.informer.synced.is_set():
            raise Retry("the usage records have not been read yet: try again in a second", reason="NotReadYet", after_seconds=1.0)
        charges: list[Charge] = []
        incomplete = ""
        try:
            found = msgspec.json.decode(await self._scheduler.ask("GET", ("v1", "unsettled"), sight.query(tenants)), type=Unsettled)
        except Retry as error:
            incomplete = f"what runs now and what has just ended is missing: {error.message}"
        else:
            charges = found.charges
            await self._catch_up(int(found.version))
        return charges, incomplete, list(self._records.pages.values())

    async def _catch_up(self, version: int) -> None:
        """Waits until the cache of usage records is as new as `version`, which the scheduler had read; 2 s at most, then goes on."""
        until = self._clock.monotonic() + CATCH_UP_SECONDS
        while int(self._records.version) < version and self._clock.monotonic() < until:
            await self._clock.sleep(0.02)

    def _on_record(self, change: Change[UsageRecord]) -> None:
        """Puts a changed UsageRecord into the index, or drops one that is gone."""
        if change.new is not None:
            self._records.put(change.new)
        else:
            self._records.drop(change.key)


def _asked(query: Mapping[str, str], identity: Identity, more: tuple[str, ...]) -> Asked:
    """Returns whose usage a query asks for; `me` is the caller.

    Raises Rejected for a parameter that is not known; `more`: further known ones.
    """
    known = (*_WHO, *more)
    unknown = sorted(set(query) - set(known))
    if unknown:
        raise Rejected(f"the parameter {unknown[0]} is not known; known are {', '.join(known)}", reason="ParameterInvalid")
    user = query.get("user", "")
    return Asked(identity.user, query.get("tenant", ""), identity.user if user == "me" else user, query.get("project", ""))


def _among(query: Mapping[str, str], now: float) -> Among:
    """Returns which attempts a query asks for: times, states, numbers, names, how many; without times, those of the last seven days.

    Raises Rejected for a parameter that does not parse.
    """
    since, until = _moment("since", query.get("since", ""), now, now - RATE_DAYS * DAY), _moment("until", query.get("until", ""), now, now)
    spelled = {state.lower(): state for state in STATES}
    states = frozenset(spelled.get(state.lower(), state) for state in query.get("state", "").split(",") if state)
    unknown = sorted(states - set(STATES))
    if unknown:
        raise Rejected(f"the parameter state is {unknown[0]!r}: one or more of {', '.join(STATES)}", reason="ParameterInvalid")
    if since > until:
        limit = f"after until ({format_time(until)})" if query.get("until") else "in the future"
        sentence = f"the parameter since ({format_time(since)}) lies {limit}; without it: 7 days ago"
        raise Rejected(sentence, reason="ParameterInvalid", fields=("since",))
    most = _whole("limit", query.get("limit", ""), DEFAULT_ROWS, MOST_ROWS)
    names = frozenset(name for name in query.get("name", "").split(",") if name)
    return Among(since, until, states, most, tuple(_range(part) for part in query.get("number", "").split(",") if part), names)


def _range(text: str) -> tuple[int, int]:
    """Returns first and last of a number `12` or a range `12-17`; raises Rejected for anything else."""
    found = _NUMBERS.fullmatch(text)
    if found is None:
        raise Rejected(f"the parameter number has {text!r}: numbers or ranges such as 12,15-17", reason="ParameterInvalid")
    return int(found[1]), int(found[2] or found[1])


def _moment(name: str, text: str, now: float, absent: float) -> float:
    """Returns seconds since the epoch from a time, a day (its beginning, UTC), or how long ago; `absent` where the text is empty.

    Raises Rejected, which names the parameter `name`, for anything else.
    """
    if not text:
        return absent
    try:
        if text[-1] in "smhd":
            return now - parse_duration(text)
        return parse_time(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text)
    except LatticeError as error:
        sentence = f"the parameter {name}: {error.message}; or a day such as 2026-12-01 (UTC), or how long ago, such as 30d or 12h"
        raise Rejected(sentence, reason="ParameterInvalid", fields=(name,)) from error


def _whole(name: str, text: str, absent: int, most: int) -> int:
    """Returns a whole number from 1 to `most`; `absent` for empty text. Raises Rejected for anything else."""
    if not text:
        return absent
    if not (is_digits(text, 9) and 1 <= int(text) <= most):
        raise Rejected(f"the parameter {name} is {text!r}: a whole number from 1 to {most}", reason="ParameterInvalid", fields=(name,))
    return int(text)


def _json(body: bytes) -> web.Response:
    """Returns the answer with this body of JSON, which nobody may keep."""
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})
