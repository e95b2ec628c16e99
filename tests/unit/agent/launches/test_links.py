"""The ways to keepers: what waits to be written is not copied for each node, and a keeper that goes away is not called in a busy loop."""

from __future__ import annotations

import asyncio
import socket
from collections import deque

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import NotFound, Rejected
from lattice_agent.attempts import Key
from lattice_agent.launches import links
from lattice_agent.launches.links import PeerLink
from lattice_agent.launches.member import RECONNECT_SECONDS, KeeperRelay
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Frame
from tests.build import uid
from tests.unit.agent.launches.fakes import FakeAttempts, FakeKeepers

KEY = Key(uid(1), 1)


class LeavingKeepers(FakeKeepers):
    """A keeper that closes each connection at once, as one does whose connection another relay takes."""

    connections = 0

    async def connect(self, key: Key, number: int) -> socket.socket:
        """Returns a connection that is closed at the other end."""
        self.connections += 1
        if self.connections > 100:
            raise NotFound("no keeper")
        ours, theirs = socket.socketpair()
        theirs.close()
        ours.setblocking(False)
        return ours


async def test_a_relay_whose_keeper_closes_the_connection_waits_before_it_connects_again() -> None:
    keepers, clock = LeavingKeepers(), ManualClock()
    running = asyncio.ensure_future(KeeperRelay(keepers, KEY, 0, lambda frame: None, clock).run(None))
    await clock.run_for(3.5 * RECONNECT_SECONDS)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert keepers.connections == 4


def test_small_frames_are_written_together_and_a_large_one_is_not_copied() -> None:
    large = b"a" * (1 << 20)
    unsent = deque([b"1", b"2", large, b"3"])
    assert links._next_bytes(unsent) == b"12" + large
    assert list(unsent) == [b"3"]
    alone = deque([large, b"3"])
    assert links._next_bytes(alone) is large
    assert list(alone) == [b"3"]


def test_a_message_above_the_limit_of_a_frame_is_rejected_with_its_size() -> None:
    link = PeerLink(None, FakeAttempts(), "n2", KEY, 0)  # type: ignore[arg-type]  # nobody is called
    with pytest.raises(Rejected, match=f"a message of {frames.MAX_PAYLOAD + 1} bytes is above the limit of {frames.MAX_PAYLOAD}"):
        link.send(Frame(frames.EXCHANGED, bytes(frames.MAX_PAYLOAD + 1)))
