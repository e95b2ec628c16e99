"""State machines, pure: conditions and phase of an allocation, heartbeat and state of a node.

What belongs here: transitions and what follows from them. What does not: who decides them (scheduler,
operator, agent), clocks, requests.
"""
