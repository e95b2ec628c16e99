"""The agreement of agents and operator on the certificates of nodes: who signs which, under which name it is requested."""

from __future__ import annotations

from typing import Final

AGENT: Final = "lattice:agent:"
"""With the node's name after it, the user of a node's certificates."""
GROUP: Final = "lattice:agents"
"""The organisation of a node's certificates."""
API, PEER = "api", "peer"
"""The two uses: towards the API server, and between agents and gateways, where a node is a server, too."""
SIGNERS: Final = {API: "kubernetes.io/kube-apiserver-client", PEER: "lattice.dev/agent"}
USAGES: Final = {API: ("client auth", "digital signature"), PEER: ("client auth", "digital signature", "server auth")}
REQUEST_PREFIX: Final = "lattice-agent-"
LIFETIME_SECONDS: Final = 30 * 86400
"""The longest life of a node's certificate, and the ordinary one."""
SHORTEST_SECONDS: Final = 600
"""The API server takes no request for less; a signer may give less all the same."""


def request_name(node: str, use: str) -> str:
    """The CertificateSigningRequest of a node for one use: there is one at a time."""
    return f"{REQUEST_PREFIX}{node}.{use}"
