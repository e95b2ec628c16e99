"""Names what was signed of an image, without the library that verifies signatures, for those who only keep them. Pure."""

from __future__ import annotations

import msgspec


class SignedClaim(msgspec.Struct, frozen=True):
    """Holds a document that says which image is meant, and a signature of it; `type` empty: simple signing, else that of the envelope."""

    payload: bytes
    signature: bytes
    type: str = ""

    @property
    def signed(self) -> bytes:
        """Returns the bytes that were signed: the payload, or what an envelope (DSSE) makes of it."""
        if not self.type:
            return self.payload
        kind = self.type.encode()
        return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(self.payload), self.payload)
