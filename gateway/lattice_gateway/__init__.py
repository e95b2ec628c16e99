"""The gateway: serves people over HTTPS what nodes and the scheduler know, and nodes their work over gRPC; people reach neither directly.

What belongs here: identifying the caller, checking his rights, finding the agents, merging what they send into one stream with back
pressure. What does not: any decision about work, any state that outlives a request, any write to the cluster other than reviews of tokens
and rights.
"""

import os

# TLS 1.3 only. gRPC has no setting for that, and reads this one when it is loaded: of TLS 1.2 a suite that needs a shared key.
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305")
