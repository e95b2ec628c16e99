"""Frames that break every rule raise nothing and keep little: a share of what `python -m tests.unit.agent.launches.fuzz 1000000 1` plays."""

from __future__ import annotations

import asyncio
import random

from tests.unit.agent.launches import fuzz


def test_a_keeper_hears_whatever_an_agent_says() -> None:
    fuzz.fuzz_keeper(5000, random.Random(3))


def test_a_launch_hears_whatever_nodes_and_clients_say() -> None:
    asyncio.run(fuzz.fuzz_launch(5000, random.Random(4)))


def test_every_request_is_read_or_refused() -> None:
    fuzz.fuzz_requests(2000, random.Random(5))


def test_a_decoder_keeps_no_more_than_a_frame() -> None:
    fuzz.fuzz_decoder(5000, random.Random(6))
