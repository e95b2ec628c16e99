"""The scheduler: caches, cycles, the committer of the ledger, the projector.

What belongs here: the shell that gathers, asks the pure rooms (`lattice.scheduling`, `lattice.ledger`) and acts.
What does not: decisions, and anything that the operator does.
"""
