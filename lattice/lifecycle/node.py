"""The state machine of a node (book, "Node Lifecycle"; decisions "heartbeat" and "states of a node").

`judge` takes the facts of one node and returns its state now, the states on the way to it, and the reason. It asks no clock:
`lattice.lifecycle.heartbeats` and the operator give silence and times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lattice.units import format_duration, parse_duration
from lattice.views.cluster import NodeOptions

UNKNOWN: Final = "Unknown"
BOOTING: Final = "Booting"
READY: Final = "Ready"
DEGRADED: Final = "Degraded"
DOWN: Final = "Down"
DRAINING: Final = "Draining"
DRAINED: Final = "Drained"
DISABLED: Final = "Disabled"
FAILED: Final = "Failed"

EXPECTED: Final = frozenset({BOOTING, READY, DEGRADED, DRAINING})
"""States in which a node is expected to report; only a node in one of these counts as silent."""

TRANSITIONS: Final[dict[str, frozenset[str]]] = {
    UNKNOWN: frozenset({BOOTING, DISABLED}),
    BOOTING: frozenset({READY, DEGRADED, FAILED, DISABLED}),
    READY: frozenset({DEGRADED, DRAINING, DISABLED}),
    DEGRADED: frozenset({READY, DRAINING, DOWN, DISABLED}),
    DOWN: frozenset({BOOTING, DISABLED}),
    DRAINING: frozenset({READY, DEGRADED, DRAINED, DISABLED}),
    DRAINED: frozenset({READY, DRAINING, DISABLED}),
    DISABLED: frozenset({BOOTING}),
    FAILED: frozenset({BOOTING, DISABLED}),
}
"""By state: the states that may follow it."""


@dataclass(frozen=True)
class Timing:
    """The times of LatticeConfig `nodes` that the state machine uses, in seconds."""

    timeout: float = 30.0
    grace: float = 60.0
    boot_timeout: float = 600.0
    mass_silence_delay: float = 600.0

    @property
    def down_after(self) -> float:
        """Returns the seconds of silence after which a Degraded node becomes Down."""
        return self.timeout + self.grace

    @property
    def down_after_mass_silence(self) -> float:
        """Returns the seconds of silence after which a Degraded node becomes Down that fell silent together with most others."""
        return self.timeout + max(self.grace, self.mass_silence_delay)


def timing_of(options: NodeOptions) -> Timing:
    """Returns the times of the LatticeConfig in seconds; raises Rejected for text that is no duration."""
    return Timing(
        timeout=parse_duration(options.heartbeat_timeout),
        grace=parse_duration(options.grace_period),
        boot_timeout=parse_duration(options.boot_timeout),
        mass_silence_delay=parse_duration(options.mass_silence_delay),
    )


@dataclass(frozen=True)
class Pulse:
    """One observer's knowledge of a node's heartbeat.

    `silence`: seconds since the observer itself saw it change, counted at most from its own start or the last gap in its watch.
    `heard`: it saw a change since then. `mass`: silent and expected nodes, when this one fell silent together with more than half
    of all and at least ten; None: it did not.
    """

    silence: float = 0.0
    heard: bool = False
    number: int = 0
    mass: tuple[int, int] | None = None


@dataclass(frozen=True)
class Facts:
    """The facts from which the state of one node follows: its present state, the operators' wishes, its report, its heartbeat, its
    holders.

    `drain`, `disable`: the operator's reason, None: not asked for. `in_state`: seconds since the observer saw the state begin.
    `holders`: rows of the ledger that name the node, from a read that began while the node was already Draining or Drained; None
    when there was no such read. `flaw`: the fault that the agent reports, while it is not healthy. `deviation`: how its hardware
    differs from the known one.
    """

    state: str = UNKNOWN
    drain: str | None = None
    disable: str | None = None
    has_index: bool = False
    has_fingerprint: bool = False
    healthy: bool = False
    flaw: str = ""
    deviation: str = ""
    pulse: Pulse = Pulse()
    in_state: float = 0.0
    holders: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The state of a node that follows from its facts: the state, the states on the way to it (empty: unchanged), reason and sentence."""

    state: str
    reason: str
    message: str
    path: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Tells whether new work may be placed on the node."""
        return self.state == READY


def judge(facts: Facts, timing: Timing) -> Verdict:
    """Returns the state of a node that follows from the facts, with all states on the way to it; each step of its path is a pair of
    `TRANSITIONS`.

    An unknown state counts as Unknown; times and holders count for the first step alone.
    """
    state, path = facts.state if facts.state in TRANSITIONS else UNKNOWN, list[str]()
    while (after := _step(state, facts, timing, settled=not path)) is not None and after not in path and after != facts.state:
        path.append(after)
        state = after
    reason, message = _explain(state, facts, timing)
    return Verdict(state, reason, message, tuple(path))


def _step(state: str, facts: Facts, timing: Timing, *, settled: bool) -> str | None:
    """Returns the state that follows next; None: the state stays.

    `settled`: the state is the one that the object shows, so that its age and its holders count.
    """
    if facts.disable is not None:
        return None if state == DISABLED else DISABLED
    silent = facts.pulse.silence >= timing.timeout
    fresh = facts.pulse.heard and not silent
    fit = fresh and facts.healthy and facts.has_fingerprint and not facts.deviation
    match state:
        case "Unknown" | "Down":
            return BOOTING if fresh else None
        case "Disabled" | "Failed":
            return BOOTING if fit else None
        case "Booting":
            return _from_booting(facts, timing, silent=silent, fit=fit, settled=settled)
        case "Ready":
            if silent or _missing(facts):
                return DEGRADED
            return DRAINING if facts.drain is not None else None
        case "Degraded":
            return _from_degraded(facts, timing, silent=silent, fit=fit)
        case "Draining":
            return _from_draining(facts, silent=silent, fit=fit, settled=settled)
        case "Drained":
            if settled and facts.holders:
                return DRAINING
            return READY if facts.drain is None and fit and facts.has_index else None
    return None


def _from_booting(facts: Facts, timing: Timing, *, silent: bool, fit: bool, settled: bool) -> str | None:
    """Returns the state after Booting, None: it stays. A silent or deviating node is Degraded; one that could be Ready but has no index yet
    stays.

    `settled`: the state is the one that the object shows, so that it fails once it has lasted for the boot timeout.
    """
    if silent or facts.deviation:
        return DEGRADED
    if fit:
        return READY if facts.has_index else None  # the index is the scheduler's to give: its absence is no boot failure
    return FAILED if settled and facts.in_state >= timing.boot_timeout else None


def _from_degraded(facts: Facts, timing: Timing, *, silent: bool, fit: bool) -> str | None:
    """Returns the state after Degraded, None: it stays. A fit node with an index is Ready again, else one that reports and is to be drained
    goes Draining.

    A silent node goes Down only after a time, which is longer where many fell silent at once.
    """
    if silent:
        limit = timing.down_after if facts.pulse.mass is None else timing.down_after_mass_silence
        return DOWN if facts.pulse.silence >= limit else None
    if fit and facts.has_index:
        return READY
    return DRAINING if facts.drain is not None and facts.pulse.heard else None


def _from_draining(facts: Facts, *, silent: bool, fit: bool, settled: bool) -> str | None:
    """Returns the state after Draining, None: it stays.

    It is Drained once a read shows that nobody holds it (unknown holders: it stays); a silent one is Degraded; without a drain it goes back
    to Ready, or to Degraded if unfit.
    """
    if silent:
        return DEGRADED
    if facts.drain is None:
        if fit and facts.has_index:
            return READY
        return DEGRADED if facts.pulse.heard else None
    return DRAINED if settled and facts.holders == 0 else None


def _missing(facts: Facts) -> list[str]:
    """Returns, as words, what a node lacks for work apart from a fresh heartbeat; empty: nothing."""
    health = f"health ({facts.flaw})" if facts.flaw else "health"
    hardware = f"its known hardware ({facts.deviation})"
    needed = ((health, facts.healthy), (hardware, not facts.deviation), ("fingerprint", facts.has_fingerprint), ("index", facts.has_index))
    return [name for name, there in needed if not there]


def _explain(state: str, facts: Facts, timing: Timing) -> tuple[str, str]:
    """Returns reason and sentence of the condition Ready for a state."""
    match state:
        case "Ready":
            return "HeartbeatFresh", f"the node reports, last with heartbeat {facts.pulse.number}"
        case "Degraded":
            return _explain_degraded(facts, timing)
        case "Down":
            limits = f"timeout {format_duration(timing.timeout)}, grace period {format_duration(timing.grace)}"
            return "HeartbeatLost", f"no heartbeat for {facts.pulse.silence:.0f} s ({limits}); the last was number {facts.pulse.number}"
        case "Draining" | "Drained" if facts.drain is not None:
            return ("DrainRequested" if state == DRAINING else "DrainComplete"), f"drain: {facts.drain}"
        case "Disabled" if facts.disable is not None:
            return "DisabledByOperator", f"disabled: {facts.disable}"
        case "Draining" | "Drained" | "Disabled":
            wanted = "enable" if state == DISABLED else "undrain"
            return "ReturnPending", f"{wanted} was asked for; missing: {_lacking(facts, timing)}"
        case "Failed":
            return (
                "BootTimeout",
                f"not fit for work within {format_duration(timing.boot_timeout)} of its first report; missing: {_lacking(facts, timing)}",
            )
        case "Booting":
            return _why_unfit(facts), f"the node reports; missing: {_lacking(facts, timing)}"
    return "NeverReported", "no heartbeat of this node has been seen yet"


def _explain_degraded(facts: Facts, timing: Timing) -> tuple[str, str]:
    """Returns reason and sentence of Degraded: what a reporting node lacks, or for how long it has been silent and when it goes Down."""
    pulse = facts.pulse
    if pulse.silence < timing.timeout:
        return _why_unfit(facts), f"the node reports; missing: {_lacking(facts, timing)}"
    said = f"no heartbeat for {pulse.silence:.0f} s (timeout {format_duration(timing.timeout)})"
    if pulse.mass is not None:
        silent, expected = pulse.mass
        waits = format_duration(timing.down_after_mass_silence)
        return "ManyNodesSilent", f"{said}; {silent} of {expected} nodes fell silent at once: Down waits until {waits} of silence"
    return "HeartbeatMissed", f"{said}; Down after {format_duration(timing.down_after)} of silence"


def _why_unfit(facts: Facts) -> str:
    """Returns the reason why a reporting node is not fit."""
    if not facts.healthy:
        return "Unhealthy"
    return "HardwareDeviates" if facts.deviation else "Registering"


def _lacking(facts: Facts, timing: Timing) -> str:
    """Returns, as words for people, what keeps a node from Ready; "nothing" where nothing does."""
    fresh = facts.pulse.heard and facts.pulse.silence < timing.timeout
    lacking = _missing(facts) if fresh else ["a fresh heartbeat", *_missing(facts)]
    return ", ".join(lacking) or "nothing"
