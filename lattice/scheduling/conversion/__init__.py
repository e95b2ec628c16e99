"""Converts API objects for the cycle: nodes, allocations, vclusters, tenants, reservations.

Belongs here: one function a kind that reads a view (or an inventory) and makes no decision. Does not belong here: the cache that
keeps the result, and any request.
"""
