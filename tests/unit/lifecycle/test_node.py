"""The states of a node, and when silence means what."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.lifecycle.heartbeats import Heartbeats
from lattice.lifecycle.node import EXPECTED, TRANSITIONS, Facts, Pulse, Timing, judge
from lattice.models.conditions import NODE_STATES
from lattice.models.reasons import NODE_REASONS

TIMING = Timing()
FRESH = Pulse(silence=1, heard=True, number=7)
UNHEARD = Pulse(silence=1, heard=False, number=7)
FIT = Facts(has_index=True, has_fingerprint=True, healthy=True, pulse=FRESH)


def silent(seconds: float, **changes: object) -> Pulse:
    return replace(Pulse(silence=seconds, heard=True, number=7), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "changes", "after", "reason"),
    [
        pytest.param("Unknown", {"pulse": Pulse()}, "Unknown", "NeverReported", id="never heard of: Unknown"),
        pytest.param("Unknown", {"has_index": False}, "Booting", "Registering", id="first heartbeat, no index: Booting"),
        pytest.param("Unknown", {}, "Ready", "HeartbeatFresh", id="first heartbeat with everything: Ready"),
        pytest.param("Unknown", {"pulse": UNHEARD}, "Unknown", "NeverReported", id="a heartbeat from before our start is no sign of life"),
        pytest.param("Booting", {"healthy": False}, "Booting", "Unhealthy", id="unhealthy: not yet Ready"),
        pytest.param("Booting", {"has_fingerprint": False}, "Booting", "Registering", id="no fingerprint: not yet Ready"),
        pytest.param("Booting", {"has_fingerprint": False, "in_state": 600}, "Failed", "BootTimeout", id="boot timeout: Failed"),
        pytest.param("Booting", {"has_index": False, "in_state": 9999}, "Booting", "Registering", id="no index is no boot failure"),
        pytest.param("Booting", {"pulse": silent(30)}, "Degraded", "HeartbeatMissed", id="silent while booting: Degraded"),
        pytest.param("Ready", {"pulse": silent(29.9)}, "Ready", "HeartbeatFresh", id="29.9 s: Ready"),
        pytest.param("Ready", {"pulse": silent(30)}, "Degraded", "HeartbeatMissed", id="30 s: Degraded"),
        pytest.param("Ready", {"pulse": UNHEARD}, "Ready", "HeartbeatFresh", id="a restarted operator leaves Ready nodes Ready"),
        pytest.param("Ready", {"healthy": False}, "Degraded", "Unhealthy", id="unhealthy: Degraded"),
        pytest.param("Ready", {"deviation": "gpus 512, 0 declared"}, "Degraded", "HardwareDeviates", id="other hardware: Degraded"),
        pytest.param("Booting", {"deviation": "gpus 512, 0 declared"}, "Degraded", "HardwareDeviates", id="other hardware: never Ready"),
        pytest.param("Degraded", {"deviation": "gpus 512, 0 declared"}, "Degraded", "HardwareDeviates", id="other hardware stays Degraded"),
        pytest.param("Degraded", {"healthy": False, "in_state": 9999}, "Degraded", "Unhealthy", id="unhealthy alone is never Down"),
        pytest.param("Degraded", {"pulse": silent(89.9)}, "Degraded", "HeartbeatMissed", id="89.9 s: Degraded"),
        pytest.param("Degraded", {"pulse": silent(90)}, "Down", "HeartbeatLost", id="90 s: Down"),
        pytest.param("Degraded", {"pulse": silent(90, mass=(12, 20))}, "Degraded", "ManyNodesSilent", id="mass silence: Down waits"),
        pytest.param("Degraded", {"pulse": silent(629, mass=(12, 20))}, "Degraded", "ManyNodesSilent", id="mass silence: still waits"),
        pytest.param("Degraded", {"pulse": silent(630, mass=(12, 20))}, "Down", "HeartbeatLost", id="mass silence: Down at last"),
        pytest.param("Degraded", {}, "Ready", "HeartbeatFresh", id="heartbeat back: Ready"),
        pytest.param("Degraded", {"pulse": UNHEARD}, "Degraded", "Registering", id="a restarted operator needs a heartbeat of its own"),
        pytest.param("Down", {"pulse": silent(9999)}, "Down", "HeartbeatLost", id="Down stays Down"),
        pytest.param("Down", {"pulse": UNHEARD}, "Down", "HeartbeatLost", id="Down is not left without a heartbeat"),
        pytest.param("Down", {}, "Ready", "HeartbeatFresh", id="back and fit: Ready"),
        pytest.param("Down", {"has_fingerprint": False}, "Booting", "Registering", id="back, not fit: Booting"),
        pytest.param("Ready", {"drain": "fan"}, "Draining", "DrainRequested", id="drain: Draining"),
        pytest.param("Ready", {"drain": "fan", "holders": 0}, "Draining", "DrainRequested", id="Drained only once Draining stands written"),
        pytest.param("Draining", {"drain": "fan", "holders": 0}, "Drained", "DrainComplete", id="nobody holds it: Drained"),
        pytest.param("Draining", {"drain": "fan", "holders": 2}, "Draining", "DrainRequested", id="held: Draining"),
        pytest.param("Draining", {"drain": "fan", "holders": None}, "Draining", "DrainRequested", id="ledger not read: Draining"),
        pytest.param("Draining", {}, "Ready", "HeartbeatFresh", id="drain cancelled: Ready"),
        pytest.param(
            "Draining", {"drain": "fan", "pulse": silent(31)}, "Degraded", "HeartbeatMissed", id="silent while draining: Degraded"
        ),
        pytest.param("Degraded", {"drain": "fan"}, "Draining", "DrainRequested", id="back, drain still wished: Draining"),
        pytest.param("Degraded", {"drain": "fan", "healthy": False}, "Draining", "DrainRequested", id="an unhealthy node drains"),
        pytest.param(
            "Drained", {"drain": "fan", "holders": 1}, "Draining", "DrainRequested", id="a late placement is seen: Draining again"
        ),
        pytest.param("Drained", {"drain": "fan", "pulse": silent(9999)}, "Drained", "DrainComplete", id="maintenance may be silent"),
        pytest.param("Drained", {}, "Ready", "HeartbeatFresh", id="undrain: Ready"),
        pytest.param("Drained", {"pulse": UNHEARD}, "Drained", "ReturnPending", id="undrain waits for a heartbeat"),
        pytest.param("Drained", {"healthy": False}, "Drained", "ReturnPending", id="undrain waits for health"),
        pytest.param("Drained", {"has_fingerprint": False}, "Drained", "ReturnPending", id="undrain waits for a fingerprint"),
        pytest.param("Disabled", {"disable": "smoke"}, "Disabled", "DisabledByOperator", id="disabled stays"),
        pytest.param("Disabled", {}, "Ready", "HeartbeatFresh", id="enable: Ready"),
        pytest.param("Disabled", {"pulse": silent(99)}, "Disabled", "ReturnPending", id="enable waits for a heartbeat"),
        pytest.param("Failed", {"healthy": False}, "Failed", "BootTimeout", id="Failed is not left unfit"),
        pytest.param("Failed", {}, "Ready", "HeartbeatFresh", id="repaired: Ready"),
    ],
)
def test_the_state_follows_from_the_facts(before: str, changes: dict[str, object], after: str, reason: str) -> None:
    verdict = judge(replace(FIT, state=before, **changes), TIMING)  # type: ignore[arg-type]
    assert (verdict.state, verdict.reason) == (after, reason)


@pytest.mark.parametrize("state", NODE_STATES)
def test_disable_ends_every_state_at_once(state: str) -> None:
    assert judge(replace(FIT, state=state, disable="smoke"), TIMING).state == "Disabled"


def test_the_table_of_transitions_names_every_state() -> None:
    assert set(TRANSITIONS) == set(NODE_STATES)
    assert set().union(*TRANSITIONS.values()) <= set(NODE_STATES)


texts = st.none() | st.just("why")
pulses = st.builds(
    Pulse,
    silence=st.floats(0, 2000),
    heard=st.booleans(),
    number=st.integers(0, 99),
    mass=st.none() | st.just((12, 20)),
)
every_facts = st.builds(
    Facts,
    state=st.sampled_from(NODE_STATES),
    drain=texts,
    disable=texts,
    has_index=st.booleans(),
    has_fingerprint=st.booleans(),
    healthy=st.booleans(),
    pulse=pulses,
    in_state=st.floats(0, 2000),
    holders=st.none() | st.integers(0, 3),
)


@given(every_facts)
def test_every_step_stands_in_the_table_and_has_a_documented_reason(facts: Facts) -> None:
    verdict = judge(facts, TIMING)
    for before, after in pairwise((facts.state, *verdict.path)):
        assert after in TRANSITIONS[before]
    assert verdict.reason in {reason.word for reason in NODE_REASONS}
    assert verdict.message
    assert verdict.state == (verdict.path[-1] if verdict.path else facts.state)


@given(every_facts)
def test_judging_twice_changes_nothing_more(facts: Facts) -> None:
    once = judge(facts, TIMING)
    again = judge(replace(facts, state=once.state, in_state=0, holders=None), TIMING)
    assert again.path == ()


@given(every_facts)
def test_ready_is_entered_only_with_a_fresh_heartbeat_fingerprint_index_and_health(facts: Facts) -> None:
    verdict = judge(facts, TIMING)
    if verdict.state == "Ready":
        assert facts.has_index
        assert facts.has_fingerprint
        assert facts.healthy
        assert facts.drain is None
        assert facts.disable is None
        assert facts.pulse.silence < TIMING.timeout
        assert facts.pulse.heard or facts.state == "Ready"


@given(every_facts)
def test_down_comes_only_by_degraded_and_only_by_silence(facts: Facts) -> None:
    verdict = judge(facts, TIMING)
    if verdict.path and verdict.state == "Down":
        assert "Degraded" in (facts.state, *verdict.path[:-1])
        assert facts.pulse.silence >= (TIMING.down_after if facts.pulse.mass is None else TIMING.down_after_mass_silence)


@given(every_facts)
def test_drained_comes_only_when_the_ledger_names_no_holder(facts: Facts) -> None:
    verdict = judge(facts, TIMING)
    if verdict.path and verdict.state == "Drained":
        assert facts.state == "Draining"
        assert facts.holders == 0


def test_silence_counts_from_the_last_change_that_the_observer_saw() -> None:
    beats = Heartbeats()
    assert beats.hear("n1", "10", 1, now=5.0)
    assert beats.pulse("n1", 12.0, since=0.0) == Pulse(7.0, True, 1)
    assert not beats.hear("n1", "10", 1, now=13.0)
    assert beats.pulse("n1", 15.0, since=0.0).silence == 10.0


def test_silence_starts_from_zero_after_a_gap_and_needs_a_new_heartbeat() -> None:
    beats = Heartbeats()
    beats.hear("n1", "10", 1, now=5.0)
    assert beats.pulse("n1", 105.0, since=100.0) == Pulse(5.0, False, 1)
    beats.hear("n1", "11", 2, now=106.0)
    assert beats.pulse("n1", 107.0, since=100.0) == Pulse(1.0, True, 2)
    assert list(beats.silent(129.0, 100.0, 30.0)) == []


def test_the_unheard_are_the_expected_nodes_without_a_heartbeat_since_the_gap() -> None:
    beats = Heartbeats()
    beats.expect("silent", now=0.0)
    beats.hear("before", "10", 1, now=5.0)
    beats.hear("after", "11", 1, now=7.0)
    assert beats.unheard(6.0, lambda _name: True) == 2
    assert beats.unheard(6.0, lambda name: name == "before") == 1
    beats.hear("before", "12", 2, now=8.0)
    assert beats.unheard(6.0, lambda name: name != "silent") == 0


def test_a_node_without_a_lease_was_never_heard() -> None:
    beats = Heartbeats()
    beats.expect("n1", now=3.0)
    assert beats.pulse("n1", 50.0, since=0.0) == Pulse(47.0, False, 0)


@pytest.mark.parametrize(
    ("fallen", "of", "mass"),
    [(9, 9, False), (10, 20, False), (10, 19, True), (11, 20, True), (40, 100, False), (51, 100, True)],
)
def test_more_than_half_and_at_least_ten_is_mass_silence(fallen: int, of: int, mass: bool) -> None:
    beats = Heartbeats()
    for index in range(of):
        beats.hear(f"n{index}", "1", 1, now=0.5)
    for index in range(fallen, of):
        beats.hear(f"n{index}", "2", 2, now=30.0)
    names = beats.sweep(31.0, 0.0, TIMING, of, lambda name: True)
    assert sorted(names) == sorted(f"n{index}" for index in range(fallen))
    assert (beats.pulse("n0", 31.0, 0.0).mass == (fallen, of)) is mass


def test_a_network_that_comes_back_node_by_node_shortens_nobodys_wait() -> None:
    beats = Heartbeats()
    for index in range(12):
        beats.hear(f"n{index}", "1", 1, now=0.5)
    beats.sweep(31.0, 0.0, TIMING, 12, lambda name: True)
    for index in range(8):
        beats.hear(f"n{index}", "2", 2, now=60.0)
    assert beats.sweep(91.0, 0.0, TIMING, 12, lambda name: int(name[1:]) >= 8) == [f"n{index}" for index in range(8, 12)]
    assert beats.pulse("n9", 91.0, 0.0).mass == (12, 12)
    assert beats.pulse("n1", 61.0, 0.0).mass is None


names = st.sampled_from([f"n{index}" for index in range(6)])
events = st.lists(
    st.one_of(
        st.tuples(st.just("hear"), names, st.integers(0, 3)),
        st.tuples(st.just("expect"), names, st.just(0)),
        st.tuples(st.just("forget"), names, st.just(0)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 40)),
    ),
    max_size=60,
)


@given(events)
def test_the_silent_are_exactly_those_whose_pulse_is_silent(history: list[tuple[str, str, int]]) -> None:
    beats, now, followed = Heartbeats(), 0.0, set[str]()
    for what, name, number in history:
        match what:
            case "hear":
                beats.hear(name, str(number), number, now)
                followed.add(name)
            case "expect":
                beats.expect(name, now)
                followed.add(name)
            case "forget":
                beats.remove_node(name)
                followed.discard(name)
            case _:
                now += number
        beats.validate()
    expected = {name for name in followed if beats.pulse(name, now, 10.0).silence >= 30}
    assert set(beats.silent(now, 10.0, 30.0)) == expected
    assert len(beats) == len(followed)


def test_only_nodes_that_are_expected_to_report_fall_silent() -> None:
    assert sorted(EXPECTED) == ["Booting", "Degraded", "Draining", "Ready"]
