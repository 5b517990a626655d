"""Makes DKIM key pairs: the private half as it is sealed, the public half as it is published. Signing: mail/dkim."""

from __future__ import annotations

import secrets
from base64 import b64encode
from datetime import date
from typing import Literal

import attrs
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

Algorithm = Literal["rsa", "ed25519"]


@attrs.frozen
class KeyPair:
    """A new key. `public` is the p= tag, `der` the private half as PKCS#8."""

    selector: str
    algorithm: Algorithm
    public: str
    der: bytes = attrs.field(repr=False)


def new_pair(algorithm: Algorithm, today: date) -> KeyPair:
    """A key pair under a selector that was never used; RSA takes some tenths of a second."""
    # One key for each selector (8463 §3): the letter tells them apart, the random part keeps a name from coming back.
    selector = f"ms{today:%Y%m}{algorithm[0]}{secrets.token_hex(2)}"
    if algorithm == "ed25519":
        edwards = Ed25519PrivateKey.generate()
        der = edwards.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        public = edwards.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)  # 8463 §4: the 32 octets themselves
    else:
        rsa = generate_private_key(65537, 2048)  # 8301 §3.2
        der = rsa.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        public = rsa.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # 6376 §3.6.1
    return KeyPair(selector, algorithm, b64encode(public).decode(), der)
