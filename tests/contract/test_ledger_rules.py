"""The ledger's rules inside a real API server: which writes pass, and which are refused with which sentence."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from lattice.models.ledger import SHARDS
from tests.contract.crd_objects import Collection, accepted, refused
from tests.servers import Answer, ApiServer


def ledger_status(**changes: Any) -> dict[str, Any]:
    return {
        "epoch": 3, "term": "term-a", "seq": 10, "commit": "c10", "nextNumber": 100, "recoveries": 0, "totalNodes": 10,
        "sensitive": {"max": 2, "used": 1},
        "tenants": {
            "ml": {"maxNodes": 4, "usedNodes": 2, "maxAllocations": 3, "usedAllocations": 1},
            "free": {"usedNodes": 3, "usedAllocations": 2},
            "idle": {"maxNodes": 1, "usedNodes": 0, "usedAllocations": 0},
            "over": {"maxNodes": 1, "usedNodes": 3, "maxAllocations": 1, "usedAllocations": 2, "userMaxNodes": 2, "userMaxAllocations": 1},
        },
        "shards": ["1||"] * SHARDS,
        **changes,
    }  # fmt: skip


class LedgerObject:
    """The one Ledger, and writes to it as a committer makes them."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    def write(self, **changes: Any) -> Answer:
        """PUT the status with the next seq and a new commit id, and what else changes."""
        stands = self.collection.read("lattice")
        status = stands["status"]
        following = {**status, "seq": status["seq"] + 1, "commit": f"c{status['seq'] + 1}", **changes}
        return self.collection.put(
            "lattice", {**stands, "status": {key: value for key, value in following.items() if value is not None}}, status=True
        )

    def account(self, tenant: str, **changes: Any) -> dict[str, Any]:
        """All tenants as they stand, one of them changed; None removes a field, no change at all removes the tenant."""
        tenants = copy.deepcopy(self.collection.read("lattice")["status"]["tenants"])
        if not changes:
            del tenants[tenant]
            return dict(tenants)
        merged = {**tenants.get(tenant, {}), **changes}
        tenants[tenant] = {key: value for key, value in merged.items() if value is not None}
        return dict(tenants)


@pytest.fixture
def ledger(api_server: ApiServer) -> Iterator[LedgerObject]:
    found = Collection(api_server, "ledgers", "Ledger")
    stands = accepted(found.create("lattice"))
    status = ledger_status()
    lowered = status["tenants"]["over"]
    status["tenants"]["over"] = {**lowered, "maxNodes": 3, "maxAllocations": 2}
    accepted(found.put("lattice", {**stands, "status": status}, status=True))
    ledger = LedgerObject(found)
    accepted(ledger.write(tenants={**status["tenants"], "over": lowered}))
    yield ledger
    found.drop("lattice")


def test_an_ordinary_commit_passes(ledger: LedgerObject) -> None:
    accepted(ledger.write())
    accepted(ledger.write(nextNumber=200, shards=["1|ml,alice,batch|", *["1||"] * (SHARDS - 1)]))


def test_a_takeover_raises_the_epoch_and_changes_the_term(ledger: LedgerObject) -> None:
    accepted(ledger.write(epoch=4, term="term-b"))
    refused(ledger.write(term="term-c"), "term changes only with epoch + 1")
    refused(ledger.write(epoch=6, term="term-c"), "epoch grows by one (by more only in a recovery), and never goes back")
    refused(ledger.write(epoch=3, term="term-a"), "and never goes back")


def test_a_recovery_raises_seq_and_epoch_beyond_what_was_seen(ledger: LedgerObject) -> None:
    refused(ledger.write(epoch=40, seq=1000), "epoch grows by one")
    accepted(ledger.write(epoch=40, seq=1000, recoveries=1))


def test_a_deposed_leader_cannot_write_with_its_old_epoch_and_term(ledger: LedgerObject) -> None:
    accepted(ledger.write(epoch=4, term="term-b"))
    refused(ledger.write(epoch=3, term="term-a"), "epoch grows by one")


@pytest.mark.parametrize("step", [-1, 0, 2])
def test_seq_grows_by_one(ledger: LedgerObject, step: int) -> None:
    refused(ledger.write(seq=ledger.collection.read("lattice")["status"]["seq"] + step, commit="x"), "seq grows by one")


def test_a_recovery_may_raise_seq_by_more(ledger: LedgerObject) -> None:
    accepted(ledger.write(seq=1000, recoveries=1))
    refused(ledger.write(seq=2000, recoveries=3), "recoveries grows by one")
    refused(ledger.write(seq=500, recoveries=2), "seq grows by one")


def test_a_recovery_enters_use_above_a_limit_that_it_takes_away_and_the_limit_comes_back_beside_it(ledger: LedgerObject) -> None:
    accepted(ledger.write(totalNodes=20))
    above = {"usedNodes": 6, "usedAllocations": 5}
    refused(ledger.write(seq=1000, recoveries=1, tenants=ledger.account("ml", **above)), "usedNodes would exceed maxNodes")
    accepted(ledger.write(seq=1000, recoveries=1, tenants=ledger.account("ml", maxNodes=None, maxAllocations=None, **above)))
    accepted(ledger.write(tenants=ledger.account("ml", maxNodes=4, maxAllocations=3)))
    refused(ledger.write(tenants=ledger.account("ml", usedNodes=7)), "usedNodes would exceed maxNodes")


def test_every_write_has_a_commit_id_of_its_own_and_numbers_never_go_back(ledger: LedgerObject) -> None:
    refused(ledger.write(commit=ledger.collection.read("lattice")["status"]["commit"]), "every write has a commit id of its own")
    refused(ledger.write(nextNumber=99), "nextNumber never goes back")


def test_a_claim_beyond_the_hard_quota_is_refused(ledger: LedgerObject) -> None:
    refused(ledger.write(tenants=ledger.account("ml", usedNodes=5)), "usedNodes would exceed maxNodes")
    refused(ledger.write(tenants=ledger.account("ml", usedAllocations=4)), "usedAllocations would exceed maxAllocations")
    accepted(ledger.write(tenants=ledger.account("ml", usedNodes=4, usedAllocations=3)))


def test_a_tenant_without_limit_takes_what_exists_and_no_more(ledger: LedgerObject) -> None:
    accepted(ledger.write(tenants=ledger.account("free", usedNodes=5)))
    refused(ledger.write(tenants=ledger.account("free", usedNodes=6)), "more nodes would be held than exist")


def test_a_limit_may_fall_below_what_is_used_and_use_may_shrink_towards_it(ledger: LedgerObject) -> None:
    accepted(ledger.write(tenants=ledger.account("ml", maxNodes=0, maxAllocations=0)))
    accepted(ledger.write())
    accepted(ledger.write(tenants=ledger.account("over", usedNodes=2, usedAllocations=2)))
    refused(ledger.write(tenants=ledger.account("over", usedNodes=3)), "usedNodes would exceed maxNodes")


def test_a_new_tenant_is_within_its_limit_from_the_start(ledger: LedgerObject) -> None:
    refused(ledger.write(tenants=ledger.account("new", maxNodes=0, usedNodes=1)), "usedNodes would exceed maxNodes")
    accepted(ledger.write(tenants=ledger.account("new", maxNodes=1, usedNodes=1)))


def test_absent_use_counts_as_zero(ledger: LedgerObject) -> None:
    accepted(ledger.write(tenants=ledger.account("idle", usedNodes=None, usedAllocations=None)))
    refused(ledger.write(tenants=ledger.account("idle", usedNodes=2)), "usedNodes would exceed maxNodes")
    accepted(ledger.write(sensitive={}))
    refused(ledger.write(sensitive={"used": 1}), "sensitive.used would exceed sensitive.max")


def test_a_tenant_in_use_is_never_dropped(ledger: LedgerObject) -> None:
    refused(ledger.write(tenants=ledger.account("ml")), "a tenant that holds nodes cannot be dropped from the ledger")
    accepted(ledger.write(tenants=ledger.account("idle")))


def test_a_node_leaves_the_total_only_when_it_is_not_needed_for_what_is_held(ledger: LedgerObject) -> None:
    accepted(ledger.write(totalNodes=8))
    refused(ledger.write(totalNodes=7), "more nodes would be held than exist")
    accepted(ledger.write(totalNodes=20))


def test_the_sensitive_pool_is_a_hard_limit_too(ledger: LedgerObject) -> None:
    refused(ledger.write(sensitive={"max": 2, "used": 3}), "sensitive.used would exceed sensitive.max")
    accepted(ledger.write(sensitive={"max": 0, "used": 1}))


@pytest.mark.parametrize("name", sorted(ledger_status()))
def test_no_field_of_the_ledger_may_be_left_out(ledger: LedgerObject, name: str) -> None:
    refused(ledger.write(**{name: None}), f"status.{name}: Required value")


def test_the_ledgers_status_is_never_removed(ledger: LedgerObject) -> None:
    refused(ledger.collection.merge("lattice", {"status": None}, status=True), "the ledger's status is never removed")


def test_the_ledger_keeps_its_number_of_shards(ledger: LedgerObject) -> None:
    refused(ledger.write(shards=["1||"] * (SHARDS - 1)), "status.shards")
    refused(ledger.write(shards=["1||"] * (SHARDS + 1)), "status.shards")


def test_the_rules_are_affordable_for_as_many_tenants_and_rows_as_the_ledger_takes(ledger: LedgerObject) -> None:
    account = {"maxNodes": 1, "usedNodes": 1, "maxAllocations": 1, "usedAllocations": 1}
    tenants = {**ledger.collection.read("lattice")["status"]["tenants"], **{f"tenant-{n:04d}": account for n in range(1020)}}
    shards = ["1|physics,alice,batch|" + ";".join(["AAAAAAAAAAAAAAAAAAAAAA 1 1 0 0 0 B h 1 1-9"] * 400)] * SHARDS
    accepted(ledger.write(tenants=tenants, totalNodes=16384, shards=shards))
    accepted(ledger.write())
    refused(ledger.write(tenants=ledger.account("tenant-1019", usedNodes=2)), "usedNodes would exceed maxNodes")
    refused(ledger.write(tenants={**tenants, "one-more": account}), "status.tenants: Too many")


def test_a_late_writer_loses_by_resource_version(ledger: LedgerObject) -> None:
    stands = ledger.collection.read("lattice")
    accepted(ledger.write())
    late = {**stands, "status": {**stands["status"], "seq": stands["status"]["seq"] + 1, "commit": "late"}}
    assert ledger.collection.put("lattice", late, status=True).status == 409
