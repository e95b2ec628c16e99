"""Runs one node: passes events to the state machine, and carries out the instructions that follow.

Belongs here: the agent of a node, its effects, the work queues that nodes of one process share, and what plans and configuration tell them.
Does not belong here: a decision (`lifecycle`, `reporter`), a request to the API server (`cluster`), or a system call (`host`).
"""
