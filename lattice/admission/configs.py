"""Checks the LatticeConfig: durations and numbers within their limits, and durations that agree with each other."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lattice.admission.facts import Facts
from lattice.admission.submission import malformed
from lattice.admission.verdicts import Finding, Object, Refused, reading
from lattice.errors import Rejected
from lattice.quota.amounts import amounts_of
from lattice.units import parse_duration, parse_quantity, parse_time, quantity_bytes
from lattice.views import Config

LEAST_START_SECONDS = 20
"""The shortest start timeout in seconds; starts that take less are not watched."""
MAX_NODES = 16384
"""The most nodes that the ledger can count."""
LEAST_RECORDING_BYTES = 1 << 20
"""The smallest size of a cycle log; a smaller one would hold no cycle of a large machine."""
_OWN_PREFIXES = ("system:", "lattice:")
"""Prefixes of user names that belong to Kubernetes and Lattice themselves."""
LEAST_LOG_BYTES = 65536
"""The least bytes kept of an output stream; less would lose a single screen of output."""


def judge(obj: Object, facts: Facts) -> Iterator[Finding]:
    """Yields the refusals for a LatticeConfig created or changed; a duration that does not parse ends the check, so that nothing after it
    is judged.
    """
    del facts
    try:
        config = msgspec.convert(obj, Config)
    except msgspec.ValidationError as error:
        yield malformed(error, "")
        return
    seconds: dict[str, float] = {}
    for field, text, least, most in _durations(config):
        value = reading(parse_duration, text, field=field, reason="DurationInvalid")
        if isinstance(value, Refused):
            yield value
            return
        if not least <= value <= most:
            sentence = f"{field} is {text} (limits: {least:g}s to {most:g}s)"
            yield Refused("OptionInvalid", sentence, field, "choose a duration within the limits")
        seconds[field] = value
    yield from _order(config, seconds)
    yield from _scheduling(config)
    yield from _work(config)
    yield from _quota_tree(config)


def _durations(config: Config) -> tuple[tuple[str, str, float, float], ...]:
    """Returns each duration with its field and its limits in seconds."""
    scheduling, nodes = config.spec.scheduling, config.spec.nodes
    return (
        ("spec.scheduling.cycleInterval", scheduling.cycle_interval, 1, 3600),
        ("spec.scheduling.retryBackOff", scheduling.retry_back_off, 1, 300),
        ("spec.scheduling.referenceWait", scheduling.reference_wait, 1, 7 * 86400),
        ("spec.scheduling.fairShareHalfLife", scheduling.fair_share_half_life, 3600, 365 * 86400),
        ("spec.scheduling.nearCompletion", scheduling.near_completion, 0, 86400),
        ("spec.scheduling.recording.maxAge", scheduling.recording.max_age, 60, 365 * 86400),
        ("spec.quotaTree.delay", config.spec.quota_tree.delay, 0, 86400),
        ("spec.work.startTimeout", config.spec.work.start_timeout, LEAST_START_SECONDS, 86400),
        ("spec.work.hookTimeout", config.spec.work.hook_timeout, 1, 3600),
        ("spec.work.epilogueTimeout", config.spec.work.epilogue_timeout, 1, 86400),
        ("spec.mpi.fenceTimeout", config.spec.mpi.fence_timeout, 1, 86400),
        ("spec.nodes.heartbeatInterval", nodes.heartbeat_interval, 1, 600),
        ("spec.nodes.heartbeatTimeout", nodes.heartbeat_timeout, 2, 3600),
        ("spec.nodes.gracePeriod", nodes.grace_period, 1, 86400),
        ("spec.nodes.bootTimeout", nodes.boot_timeout, 1, 86400),
        ("spec.nodes.massSilenceDelay", nodes.mass_silence_delay, 0, 86400),
    )


def _order(config: Config, seconds: dict[str, float]) -> Iterator[Finding]:
    """Yields a refusal for each duration of nodes that is not in order with another. `seconds`: the durations by field."""
    nodes = config.spec.nodes
    if seconds["spec.nodes.heartbeatTimeout"] <= seconds["spec.nodes.heartbeatInterval"]:
        numbers = f"(timeout: {nodes.heartbeat_timeout}, interval: {nodes.heartbeat_interval})"
        sentence = (
            f"spec.nodes.heartbeatTimeout is not above heartbeatInterval {numbers}: every node would be Degraded between two heartbeats"
        )
        yield Refused("OptionInvalid", sentence, "spec.nodes.heartbeatTimeout", "choose about three times the interval")
    if seconds["spec.nodes.bootTimeout"] < seconds["spec.nodes.heartbeatTimeout"]:
        numbers = f"(boot: {nodes.boot_timeout}, timeout: {nodes.heartbeat_timeout})"
        sentence = f"spec.nodes.bootTimeout is below heartbeatTimeout {numbers}: a booting node would be Failed before it is Degraded"
        yield Refused("OptionInvalid", sentence, "spec.nodes.bootTimeout", "choose at least heartbeatTimeout")


def _scheduling(config: Config) -> Iterator[Finding]:
    """Yields a refusal for each option of the scheduler, other than the durations, that does not parse or is out of its limits."""
    scheduling, where = config.spec.scheduling, "spec.scheduling"
    for field, number, least, most in (
        ("backfillDepth", scheduling.backfill_depth, 0, 1000),
        ("victims", scheduling.victims, 1, 16),
        ("powerBudgetKilowatts", scheduling.power_budget_kilowatts, 0, 1_000_000),
        ("sensitivePoolSize", scheduling.sensitive_pool_size, 0, MAX_NODES),
    ):
        if not least <= number <= most:
            sentence = f"{where}.{field} is {number} (limits: {least} to {most})"
            yield Refused("OptionInvalid", sentence, f"{where}.{field}", "choose a number within the limits")
    if scheduling.energy_price is not None:
        price = reading(parse_quantity, scheduling.energy_price, field=f"{where}.energyPrice", reason="QuantityInvalid")
        if isinstance(price, Refused):
            yield price
        elif price > 1:
            sentence = f"{where}.energyPrice is {scheduling.energy_price} (limits: 0 to 1)"
            yield Refused("OptionInvalid", sentence, f"{where}.energyPrice", "0 is the cheapest electricity of the day, 1 the dearest")
    kept = reading(quantity_bytes, scheduling.recording.max_size, field=f"{where}.recording.maxSize", reason="QuantityInvalid")
    if isinstance(kept, Refused):
        yield kept
    elif kept < LEAST_RECORDING_BYTES:
        sentence = f"{where}.recording.maxSize is {scheduling.recording.max_size} (at least: {LEAST_RECORDING_BYTES} bytes)"
        yield Refused("OptionInvalid", sentence, f"{where}.recording.maxSize", "choose for example 256Mi")
    if scheduling.energy_price_until is not None:
        until = reading(parse_time, scheduling.energy_price_until, field=f"{where}.energyPriceUntil", reason="TimeInvalid")
        if isinstance(until, Refused):
            yield until


def _quota_tree(config: Config) -> Iterator[Finding]:
    """Yields a refusal for each option of the quota tree that does not parse or is not allowed."""
    options = config.spec.quota_tree
    if not 1 <= options.max_per_round <= 1000:
        sentence = f"spec.quotaTree.maxPerRound is {options.max_per_round} (limits: 1 to 1000)"
        yield Refused("OptionInvalid", sentence, "spec.quotaTree.maxPerRound", "set spec.quotaTree.revocation to Off to revoke nothing")
    if options.revocation not in ("Off", "Notify", "On"):
        sentence = f"spec.quotaTree.revocation is {options.revocation}, and may be Off, Notify or On"
        yield Refused("OptionInvalid", sentence, "spec.quotaTree.revocation", "Notify says it and ends nothing")
    try:
        amounts_of(options.default_max or {}, field="spec.quotaTree.defaultMax")
    except Rejected as error:
        yield Refused(error.reason, error.message, (*error.fields, "")[0], "write for example nodes: 4")


def _work(config: Config) -> Iterator[Finding]:
    """Yields a refusal for each option of work and each class of a qos that does not parse or is not allowed."""
    work = config.spec.work
    if work.min_uid < 1:
        yield Refused("OptionInvalid", f"spec.work.minUid is {work.min_uid}: root never runs work", "spec.work.minUid", "choose at least 1")
    kept = reading(quantity_bytes, work.log_bytes, field="spec.work.logBytes", reason="QuantityInvalid")
    if isinstance(kept, Refused):
        yield kept
    elif kept < LEAST_LOG_BYTES:
        sentence = f"spec.work.logBytes is {work.log_bytes}, and must be at least {LEAST_LOG_BYTES} bytes"
        yield Refused("OptionInvalid", sentence, "spec.work.logBytes", "choose for example 64Mi")
    for prefix in work.user_prefixes:
        if prefix.startswith(_OWN_PREFIXES) or not prefix:
            sentence = f"spec.work.userPrefixes lists {prefix!r}: names that begin so are the cluster's own, not people's"
            yield Refused("OptionInvalid", sentence, "spec.work.userPrefixes", "list the prefix of an identity provider, such as oidc:")
    for qos, level in sorted(config.spec.compat.qos_mapping.items()):
        if not 0 <= level <= 10:
            sentence = f"spec.compat.qosMapping[{qos!r}] is {level}, and preemption classes are 0 to 10"
            yield Refused("ClassInvalid", sentence, "spec.compat.qosMapping", "choose 0 to 10")
