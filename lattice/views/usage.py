"""The cached UsageRecord."""

from __future__ import annotations

from lattice.views.meta import Metadata, View


class UsageRecordSpec(View, frozen=True):
    """One part of a tenant's month; `lattice.accounting.records` parses the rows."""

    tenant: str = ""
    month: str = ""
    part: int = 0
    sealed: bool = False
    rows: str = ""


class UsageRecord(View, frozen=True):
    """The charges of attempts that ended in one month."""

    metadata: Metadata
    spec: UsageRecordSpec = UsageRecordSpec()
