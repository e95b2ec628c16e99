"""Answers to people: `why`, `plan`, `queue`, `quota tree`, `quota explain`, and the rows of `status` and `nodes`.

Belongs here: the documents as types (`answers`, `quota_answers`), the rules of who may see which part (`readers`), their computation
from a snapshot. Does not belong here: a decision that changes something (`cycle`, `preemption`), transport and rendering (gateway,
`lattice.cli`).
"""
