"""The agreement of agents and operator on node certificates: users, signers, lifetimes, and names of requests."""

from __future__ import annotations

from typing import Final

AGENT: Final = "lattice:agent:"
"""The beginning of the user name in a node's certificates; the node's name follows."""
GROUP: Final = "lattice:agents"
"""The organisation in a node's certificates, which is the user's group."""
API, PEER = "api", "peer"
"""The two uses of a node's certificate: to the API server, and to agents and gateways, where the node is a server too."""
SIGNERS: Final = {API: "kubernetes.io/kube-apiserver-client", PEER: "lattice.dev/agent"}
USAGES: Final = {API: ("client auth", "digital signature"), PEER: ("client auth", "digital signature", "server auth")}
REQUEST_PREFIX: Final = "lattice-agent-"
LIFETIME_SECONDS: Final = 30 * 86400
"""The longest life of a node's certificate, which is also the default."""
SHORTEST_SECONDS: Final = 600
"""The shortest life that the API server lets a request ask for; a signer may still give less."""


def request_name(node: str, use: str) -> str:
    """Returns the name of a node's CertificateSigningRequest for one use; there is at most one at a time."""
    return f"{REQUEST_PREFIX}{node}.{use}"
