"""Small machines and logs for the production engine."""

from __future__ import annotations

import json
from dataclasses import replace

from lattice.inventory import read_inventory
from lattice.replay.jobs import Log, TraceJob
from lattice.replay.measures import Replayed
from lattice.replay.plain import alike
from lattice.replay.production import Setting, World, fit
from lattice.replay.profiles import base_policy, read_settings, with_settings
from lattice.replay.synthetic import generate
from lattice.scheduling.conversion.facts import facts_of_inventory
from lattice.scheduling.model.policy import Policy


def job(name: str, submit: float, run: float, nodes: int = 1, *, walltime: float | None = None, **fields: object) -> TraceJob:
    """A job without grace that runs as long as it asked for, unless told otherwise."""
    made = TraceJob(id=name, submit=submit, nodes=nodes, most=nodes, run=run, walltime=run if walltime is None else walltime, grace=0.0)
    return replace(made, **fields)  # type: ignore[arg-type]


def log(*jobs: TraceJob) -> Log:
    """A log of these jobs."""
    return Log("test", list(jobs), total=len(jobs)).settle()


def play(work: Log, nodes: int, **policies: Policy) -> Replayed:
    """The whole log on equal nodes; what is kept from event to event is checked after each instant."""
    setting = Setting(alike(nodes), policies or {name: base_policy(name) for name in {each.vcluster for each in work.jobs}})
    world = World(work, setting)
    while world.advance():
        world.validate()
    return world.finish()


def starts(done: Replayed) -> dict[str, float]:
    """When each job started."""
    return {each.job.id: each.start for each in done.ran}


def generated(kind: str, seed: int, nodes: int, hours: float) -> tuple[Log, Setting]:
    """A generated trace and what it runs with."""
    made = generate(kind, seed, nodes=nodes, hours=hours)
    inventory = read_inventory(json.dumps(made.inventory), kind)
    facts, homes = facts_of_inventory(inventory), inventory.homes()
    policies = {
        name: replace(with_settings(base_policy(name), read_settings(name, given)), home=name in homes)
        for name, given in made.vclusters.items()
    }
    return fit(made, facts), Setting(facts, policies)
