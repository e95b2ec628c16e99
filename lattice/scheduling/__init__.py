"""Placement decisions, pure: pending work and nodes in; places, or reasons with numbers, out.

What belongs here: queue order, eligibility, placement, the cycle. What does not: the ledger's consistency
(`lattice.ledger`: a place is a proposal until it is committed), requests, clocks.
"""
