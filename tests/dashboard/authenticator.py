"""A software passkey for tests, which can also give wrong responses."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from typing import Any

import attrs
import cbor2
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

PRESENT, VERIFIED, ATTESTED = 0x01, 0x04, 0x40


def coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@attrs.define
class Device:
    """One ES256 passkey for one relying party."""

    origin: str
    site: str
    key: ec.EllipticCurvePrivateKey = attrs.field(factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    credential: bytes = attrs.field(factory=lambda: secrets.token_bytes(32))
    count: int = 0
    steps: int = 1  # by which the counter grows
    flags: int = PRESENT | VERIFIED
    owner: str = ""

    def make(self, options: str) -> str:
        """The response to navigator.credentials.create."""
        request = json.loads(options)
        self.owner = request["user"]["id"]
        numbers = self.key.public_key().public_numbers()
        public = {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32, "big"), -3: numbers.y.to_bytes(32, "big")}
        attested = bytes(16) + len(self.credential).to_bytes(2, "big") + self.credential + cbor2.dumps(public)
        authenticator_data = self._data(self.flags | ATTESTED) + attested
        attestation = cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": authenticator_data})
        return self._answer({"clientDataJSON": self._client("webauthn.create", request), "attestationObject": attestation})

    def prove(self, options: str) -> str:
        """The response to navigator.credentials.get."""
        self.count += self.steps
        client, data = self._client("webauthn.get", json.loads(options)), self._data(self.flags)
        signature = self.key.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(SHA256()))
        found = {"clientDataJSON": client, "authenticatorData": data, "signature": signature}
        return self._answer(found, userHandle=self.owner)

    def _client(self, kind: str, request: dict[str, Any]) -> bytes:
        return json.dumps({"type": kind, "challenge": request["challenge"], "origin": self.origin, "crossOrigin": False}).encode()

    def _data(self, flags: int) -> bytes:
        return hashlib.sha256(self.site.encode()).digest() + bytes([flags]) + self.count.to_bytes(4, "big")

    def _answer(self, data: dict[str, bytes], **more: str) -> str:
        response = {name: coded(value) for name, value in data.items()} | more
        return json.dumps({"id": coded(self.credential), "rawId": coded(self.credential), "type": "public-key", "response": response})
