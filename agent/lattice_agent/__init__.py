"""The agent: one process on every node, which starts, watches and ends the work that the plan names.

Rooms, from the process down, each importing only what stands below it: `__main__`; the shell of one node (`node`); the reporter of an
attempt (`reporter`); what is said to the API server and to other agents (`cluster`, `peers`); the effects on the machine (`host`); the
files of the state directory (`state`); from an Allocation to a command (`work`, pure); the node's state machine (`lifecycle`, pure); what
runs outside this process (`standalone`). Does not belong here: scheduling, and any decision that the ledger makes.
"""

import os

# TLS 1.3 only. gRPC has no setting for that, and reads this one when it is loaded: of TLS 1.2 a suite that needs a shared key.
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305")
