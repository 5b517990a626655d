"""DKIM key pairs under their selectors: the private half as it is encrypted, the public half as it is published.

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
    """A new key. `public` is the p= tag, `der` the private half as PKCS#8."""

    selector: str
    algorithm: Algorithm
    public: str
    der: bytes = attrs.field(repr=False)


def new_pair(algorithm: Algorithm, today: date, selector: str | None = None) -> KeyPair:
    """A key pair, under a selector that was never used unless one is given; RSA takes some tenths of a second."""
    # One key for each selector (8463 §3): the letter tells them apart, the random part keeps a name from coming back.
    der, public = dkim.generate(algorithm)
    return KeyPair(selector or f"ms{today:%Y%m}{algorithm[0]}{secrets.token_hex(2)}", algorithm, public, der)
