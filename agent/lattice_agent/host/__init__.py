"""Carries out the agent's effects on its machine: users, scopes, processes, facts; one module an effect.

Belongs here: what touches the operating system. Does not belong here: any decision about an Allocation (`lattice_agent.lifecycle`), any
request to the API server or to other nodes, and the layout of files (`lattice_agent.state`).
"""
