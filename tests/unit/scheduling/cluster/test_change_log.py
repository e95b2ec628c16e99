"""The log of changes of buckets: what a position still reaches, and what it does not."""

from __future__ import annotations

import pytest

from lattice.errors import Corrupt
from lattice.scheduling.cluster.change_log import ChangeLog

MANY = 40_000


def test_a_position_before_the_log_was_emptied_gets_no_answer_rather_than_a_wrong_one() -> None:
    log: ChangeLog[str] = ChangeLog()
    log.entries += ("a", 1.0, 1)
    before = log.position
    for _ in range(MANY):
        log.entries += ("b", 2.0, 1)
    assert log.changed(before) == {"b"}
    log.trim()
    log.entries += ("c", 3.0, 1)
    with pytest.raises(Corrupt, match="reaches back to"):
        log.changed(before)
    assert log.moved(before) is None
    assert log.changed(log.position) == set()
    assert log.changed(log.position - 3) == {"c"}
