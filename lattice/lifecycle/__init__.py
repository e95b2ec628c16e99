"""State machines, pure: conditions and phase of an allocation, heartbeat and state of a node.

Belongs here: transitions, and the fields derived from them. Does not belong here: who triggers them (scheduler, operator, agent),
clocks, requests.
"""
