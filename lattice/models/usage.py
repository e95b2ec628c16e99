"""UsageRecord: what the attempts of a tenant used that ended in one month; written by the operator alone, never changed."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from lattice.models.forms import pattern_of
from lattice.models.shape import Column, Kind, Meta, Name, Part, Rule

LARGEST_ROWS = 131072
"""Bytes of the rows of one part, at most."""


class UsageRecordSpec(Part):
    """The usage of a tenant's attempts that ended in one month, one row each; rows are appended until the part is sealed."""

    tenant: Name
    """Whose attempts."""
    month: Annotated[str, Field(pattern=pattern_of("month"), max_length=7)]
    """The month (UTC) in which they ended: 2026-11."""
    part: Annotated[int, Field(ge=0, le=99999)] = 0
    """Number of this part of the month, from 0."""
    sealed: bool = False
    """True: it is full, and the next part goes on."""
    rows: Annotated[str, Field(max_length=LARGEST_ROWS)] = ""
    """One line an attempt; format in docs/explanation/formats.md."""

    rules: ClassVar = (
        Rule(
            "self.tenant == oldSelf.tenant && self.month == oldSelf.month && self.?part.orValue(0) == oldSelf.?part.orValue(0)",
            "tenant, month and part of a UsageRecord never change",
        ),
        Rule(
            "!has(oldSelf.rows) || (has(self.rows) && self.rows.startsWith(oldSelf.rows))",
            "the rows of a UsageRecord are only appended to: what is written stays",
        ),
        Rule(
            "!has(oldSelf.sealed) || !oldSelf.sealed || (has(self.sealed) && self.sealed && has(self.rows) == has(oldSelf.rows)"
            " && (!has(self.rows) || size(self.rows) == size(oldSelf.rows)))",
            "the part is sealed: the next part of the month goes on",
        ),
    )


class UsageRecord(Kind):
    """One numbered part of the record of what a tenant's attempts used that ended in one month."""

    meta: ClassVar = Meta(
        kind="UsageRecord",
        plural="usagerecords",
        short_names=("usage",),
        namespaced=False,
        columns=(
            Column("Tenant", ".spec.tenant"),
            Column("Month", ".spec.month"),
            Column("Part", ".spec.part", "integer"),
            Column("Sealed", ".spec.sealed", "boolean"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
        selectable=(".spec.tenant", ".spec.month"),
        rules=(
            Rule(
                "self.metadata.name.startsWith(self.spec.tenant + '-' + self.spec.month) && (self.spec.?part.orValue(0) == 0)"
                " == (size(self.metadata.name) == size(self.spec.tenant) + 1 + size(self.spec.month))",
                "the name of a UsageRecord is TENANT-MONTH, from the second part on with its number",
            ),
        ),
    )
    kind: str = "UsageRecord"
    spec: UsageRecordSpec
    """The rows."""
