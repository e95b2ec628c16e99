"""Makes the command, environment and files of a node's work from an Allocation: pure.

Belongs here: expansion of names and defaults for one node, environment variables, and the checks that need no machine. Does not belong
here: the look at accounts and directories (`host`), and the start (`standalone`).
"""
