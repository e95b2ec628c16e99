"""The operator: tenants, vclusters, DAGs, configuration, the lifecycle of nodes, retention (book, "Node Lifecycle", "Tenancy").

What belongs here: what these kinds need of the API server, one module a kind, `build` in `__main__`. What does
not: placement and requeue (the scheduler), the state machine of a node (`lattice.lifecycle`).
"""
