"""Talks for a node to the API server and the gateways: its object, Lease, history and certificates, and the work of its rows.

Belongs here: one module for each object that a node writes, and the reading of Allocations through a gateway. Does not belong here: the
status of an Allocation (`reporter`), the plan (`node.feeds`), and any decision about work.
"""
