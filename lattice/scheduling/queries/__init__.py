"""Answers to people about pending work and quotas: `why`, `plan`, `queue`, `quota tree`, `quota explain`.

What belongs here: the documents as types, who may see what in them, how they follow from a snapshot. What does not: a
decision that changes something (`cycle`, `preemption`), transport and rendering (gateway, `lattice.cli`).
"""
