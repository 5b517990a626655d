"""Tickets: what we give a browser to bring back once, such as the `state` of OAuth and the challenge of a passkey.

A ticket is signed, names its purpose, belongs to one browser, and ends after ten minutes. Nothing is stored when it is given out;
its use is written down (store/people/sign_in_attempts), so that it is taken once. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Sequence
from secrets import token_urlsafe

LIFE = 600


def issue(secret: bytes, anchor: str, purpose: str, now: float, **facts: str) -> str:
    """`anchor` is what the browser is known by."""
    payload = _coded(json.dumps({**facts, "": [token_urlsafe(16), int(now) + LIFE]}, separators=(",", ":")).encode())
    return f"{payload}.{_signature(secret, anchor, purpose, payload)}"


def signer(secrets: Sequence[bytes], anchor: str, purpose: str, text: str) -> bytes | None:
    """Which of our secrets signed it for this purpose and this browser."""
    payload, _, signature = text.partition(".")
    given = signature.encode("utf-8", "replace")
    good = (each for each in secrets if hmac.compare_digest(_signature(each, anchor, purpose, payload).encode(), given))
    return next(good, None) if anchor else None


def read(secrets: Sequence[bytes], anchor: str, purpose: str, text: str, now: float) -> dict[str, str] | None:
    """The facts, if it is a good ticket."""
    if signer(secrets, anchor, purpose, text) is None:
        return None
    payload = text.partition(".")[0]
    facts = json.loads(_decoded(payload))
    _, ends = facts.pop("")
    return {str(name): str(fact) for name, fact in facts.items()} if now < ends else None


def derived(secret: bytes, ticket: str, purpose: str) -> str:
    """A secret that belongs to a ticket that `secret` signed, of 256 bits in 43 characters, and is kept nowhere."""
    return _coded(hmac.digest(secret, f"{purpose} of {ticket}".encode(), "sha256"))


def in_challenge(client_data: str) -> str:
    """The ticket that a browser signed as a challenge: its `clientDataJSON`. Empty: there is none."""
    try:
        found = json.loads(_decoded(client_data))
        return _decoded(found["challenge"]).decode("ascii") if isinstance(found, dict) else ""
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
        return ""


def _signature(secret: bytes, anchor: str, purpose: str, payload: str) -> str:
    said = f"ticket {purpose} {anchor} {payload}".encode("utf-8", "surrogateescape")
    return _coded(hmac.digest(secret, said, "sha256"))


def _coded(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
