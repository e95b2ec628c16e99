"""The agent: one process on every node, which starts, watches and ends the work that the plan names.

What belongs here: the node's state machine and the reporter's view (`lifecycle`, `head`: pure), the shell that acts
for them (`agent`, `__main__`), what agents say to each other (`peers`), and the effects on the machine (`host`,
`runner`, `shim`). What does not: scheduling, and any decision that the ledger makes.
"""

import os

# TLS 1.3 only. gRPC has no setting for that, and reads this one when it is loaded: of TLS 1.2 a suite that needs a shared key.
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305")
