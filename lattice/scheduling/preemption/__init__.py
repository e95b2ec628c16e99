"""Preemption: the running work that would have to go so that pending work fits, and its cost.

Belongs here: the search for victims (`victims`, `cover`), the nodes that it may consider (`scope`, `domains`), the rules that protect
running work. Does not belong here: the ending of a victim (the scheduler's loop and the agent).
"""
