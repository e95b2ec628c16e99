"""Runs outside the agent's process, of standard library alone: the runner and the shims that it forks.

Belongs here: what `python -I -S` executes by path, and what agent and shim must write alike (`durable`, `streams`). Does not belong here:
any import from another room or another package; this file stays without code, because a shim loads it.
"""
