"""Tickets: signed values that a browser returns once, such as the `state` of OAuth and the challenge of a passkey.

A ticket has a purpose, belongs to one browser and expires after ten minutes. Nothing is stored when it is issued; its use is recorded
(store/people/sign_in_attempts), so it is accepted only once. Pure.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Sequence
from secrets import token_urlsafe

LIFE = 600


def issue(secret: bytes, binding: str, purpose: str, now: float, **facts: str) -> str:
    """`binding`: the cookie of the browser or session that the ticket belongs to."""
    payload = _coded(json.dumps({**facts, "": [token_urlsafe(16), int(now) + LIFE]}, separators=(",", ":")).encode())
    return f"{payload}.{_signature(secret, binding, purpose, payload)}"


def signer(secrets: Sequence[bytes], binding: str, purpose: str, text: str) -> bytes | None:
    """The secret that signed the ticket for this purpose and browser."""
    payload, _, signature = text.partition(".")
    given = signature.encode("utf-8", "replace")
    good = (each for each in secrets if hmac.compare_digest(_signature(each, binding, purpose, payload).encode(), given))
    return next(good, None) if binding else None


def read(secrets: Sequence[bytes], binding: str, purpose: str, text: str, now: float) -> dict[str, str] | None:
    """The ticket's data, or None if it is invalid or expired."""
    if signer(secrets, binding, purpose, text) is None:
        return None
    payload = text.partition(".")[0]
    facts = json.loads(_decoded(payload))
    _, ends = facts.pop("")
    return {str(name): str(fact) for name, fact in facts.items()} if now < ends else None


def derived(secret: bytes, ticket: str, purpose: str) -> str:
    """A secret derived from a ticket and the `secret` that signed it: 256 bits in 43 characters, stored nowhere."""
    return _coded(hmac.digest(secret, f"{purpose} of {ticket}".encode(), "sha256"))


def in_challenge(client_data: str) -> str:
    """The ticket in the `clientDataJSON` of a passkey response, where it is the challenge. Empty if there is none."""
    try:
        found = json.loads(_decoded(client_data))
        return _decoded(found["challenge"]).decode("ascii") if isinstance(found, dict) else ""
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return ""


def _signature(secret: bytes, binding: str, purpose: str, payload: str) -> str:
    signed = f"ticket {purpose} {binding} {payload}".encode("utf-8", "surrogateescape")
    return _coded(hmac.digest(secret, signed, "sha256"))


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
