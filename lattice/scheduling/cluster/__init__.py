"""The nodes of the cluster: which are free now, which will be when, and the choice among them.

What belongs here: the cache of all nodes, counts of free nodes by group and fingerprint, their availability over time, the
search for nodes that fit a request. What does not: who waits, limits and shares (`state`), the order of work (`priority`).
"""
