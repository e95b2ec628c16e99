"""Everything that a cycle reads and that outlives it: queue, nodes in use, limits, quota trees, reservations.

What belongs here: objects that events keep up to date between cycles, and checks of them. What does not: the decision that
reads them (`cycle`), the nodes alone (`cluster`).
"""
