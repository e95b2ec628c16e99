"""Two schedulers at once, and one that wakes to find its Lease stolen: the ledger has one writer, whatever they believe."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.waiting import Seen, until
from tests.faults import rivals
from tests.faults.rivals import another
from tests.faults.scene import Scene

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(300)]

TAKEOVER_SECONDS = 45.0
CODES = (0, 3, 7, 0, 3, 7)
RIGHT = [("Completed", 0, 1), ("TaskFailed", 3, 1), ("TaskFailed", 7, 1)] * 2


def leader(scene: Scene) -> int:
    """The pid in the identity of who holds the Lease."""
    with scene.here.admin() as cluster:
        return rivals.leader(cluster)


def works(scene: Scene) -> list[str]:
    """Six allocations whose ends are known."""
    return [scene.submit(nodes=1 + number % 2, seconds=2, code=code) for number, code in enumerate(CODES)]


def test_of_two_schedulers_one_leads_and_the_other_takes_over_when_it_is_killed(scene: Scene) -> None:
    first = scene.instance.pid("scheduler")
    until(Seen(lambda: leader(scene), lambda pid: pid == first), within=TAKEOVER_SECONDS, what="the first leader")
    epoch = scene.here.ledger().epoch
    with another(scene.instance) as second:
        early = works(scene)
        scene.instance.kill("scheduler")
        late = works(scene)
        until(Seen(lambda: leader(scene), lambda pid: pid == second.pid), within=TAKEOVER_SECONDS, what="the second leader")
        assert scene.ends(early) + scene.ends(late) == RIGHT * 2
        scene.instance.start("scheduler")
        assert leader(scene) == second.pid, "a second one does not push the first aside"
        assert scene.here.ledger().epoch == epoch + 1
    assert scene.ends(works(scene)) == RIGHT


def test_a_paused_scheduler_that_wakes_with_a_stolen_lease_commits_nothing(scene: Scene) -> None:
    paused = scene.instance.pid("scheduler")
    until(Seen(lambda: leader(scene), lambda pid: pid == paused), within=TAKEOVER_SECONDS, what="the first leader")
    with another(scene.instance) as second:
        early = works(scene)
        scene.instance.kill("scheduler", signal.SIGSTOP)  # with proposals, commits and projections under way
        try:
            late = works(scene)
            until(Seen(lambda: leader(scene), lambda pid: pid == second.pid), within=TAKEOVER_SECONDS, what="the second leader")
            epoch = until(lambda: scene.here.ledger().epoch, within=10)
        finally:
            scene.instance.kill("scheduler", signal.SIGCONT)
        assert scene.ends(early) + scene.ends(late) == RIGHT * 2
        assert scene.ends(works(scene)) == RIGHT
        assert (leader(scene), scene.here.ledger().epoch) == (second.pid, epoch)
        assert scene.instance.pid("scheduler") == paused, "it stands by; it has not ended"
