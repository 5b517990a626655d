"""Generates DKIM key pairs and their selectors.

Signing: mail/authentication/dkim.
"""

from __future__ import annotations

import secrets
from datetime import date

import attrs

from mailsvc.mail.authentication import dkim
from mailsvc.mail.authentication.dkim import Algorithm


@attrs.frozen
class KeyPair:
    """A new key. `public`: the p= tag; `der`: the private key as PKCS#8."""

    selector: str
    algorithm: Algorithm
    public: str
    der: bytes = attrs.field(repr=False)


def new_pair(algorithm: Algorithm, today: date, selector: str | None = None) -> KeyPair:
    """Generate a key pair, by default with a new unique selector. RSA takes a few tenths of a second."""
    # One key for each selector (8463 §3). The letter is the algorithm; the random part prevents reuse of a name.
    der, public = dkim.generate(algorithm)
    return KeyPair(selector or f"ms{today:%Y%m}{algorithm[0]}{secrets.token_hex(2)}", algorithm, public, der)
