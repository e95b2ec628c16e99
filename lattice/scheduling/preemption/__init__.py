"""Preemption: which running work would have to go so that pending work fits, and what that costs.

What belongs here: the search for victims, the nodes that it may consider, the rules that protect running work. What does
not: the ending of a victim (the scheduler's loop and the agent).
"""
