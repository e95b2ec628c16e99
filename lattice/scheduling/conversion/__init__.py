"""API objects in the words of the cycle: nodes, allocations, vclusters, tenants, reservations.

What belongs here: one function a kind that reads a view (or an inventory) and makes no decision. What does not: the cache
that keeps the result, and any request.
"""
