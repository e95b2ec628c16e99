"""What waits in each tenant, as the webhook counts it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Retry
from lattice.kube.fake import FakeCluster
from lattice_webhooks.pending import PendingCounts


class Away(FakeCluster):
    """An API server that does not answer."""

    async def list(self, *_: Any, **__: Any) -> Any:
        raise Retry("list allocations.lattice.dev: no answer", reason="NoAnswer")


async def test_a_count_that_fails_is_one_line_with_its_reason_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    counts = PendingCounts(Away(clock), clock)
    with caplog.at_level(logging.WARNING):
        await counts._count("physics")
    (record,) = caplog.records
    assert record.exc_info is None
    assert record.getMessage().startswith("PendingNotCounted")
