"""Placement decisions, pure: pending work and nodes in; places, or reasons with numbers, out.

`model` has the words, `cluster` the nodes, `state` what outlives a cycle, `priority` the scores, `cycle` the decision; above
them `preemption`, `forecast` and `recording`, and on top `queries`, `optimum` and `conversion`.

What belongs here: queue order, eligibility, placement, the cycle, and what is answered about them. What does not: the
ledger's consistency (`lattice.ledger`: a place is a proposal until it is committed), requests, clocks.
"""
