"""Decides what happens to attempts on one node: events in, instructions out; pure, without a clock.

Belongs here: what may happen to an attempt on this node, and what follows from it. Does not belong here: any effect, and what the nodes
of an attempt decide together (`reporter`).
"""
