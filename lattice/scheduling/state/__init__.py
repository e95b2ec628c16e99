"""The state that outlives a cycle and that every cycle reads: queue, holders, limits, quota trees, reservations.

Belongs here: objects that events keep up to date between cycles, and their checks. Does not belong here: the decision that reads them
(`cycle`), the nodes alone (`cluster`).
"""
