"""Carries out the effects of an agent on its machine: users, scopes, processes, facts. Each effect is one module.

Belongs here: what touches the operating system. Does not belong here: any decision about an Allocation
(`lattice_agent.lifecycle`), any word to the API server or to other nodes, and the layout of files (`lattice_agent.state`).
"""
