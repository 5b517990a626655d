"""Passkeys, the protocol: what a browser is asked for, and whether what it answers is good (WebAuthn level 2). Pure.

The device itself always checks that it is its owner, by a PIN or a finger: a passkey is two factors in one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs
import webauthn
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    PublicKeyCredentialDescriptor,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from mailsvc.dashboard.signin import tickets
from mailsvc.store.people.passkeys import Passkey
from mailsvc.store.people.users import User

LONGEST = 20_000  # characters of an answer
_VERIFIED = UserVerificationRequirement.REQUIRED


class PasskeyError(Exception):
    """A passkey's answer that is not taken; a phrase for the log."""


@attrs.frozen
class RelyingParty:
    """Whom passkeys are made for: a host name, and the origin of our pages."""

    id: str
    origin: str

    @classmethod
    def of(cls, base_url: str) -> RelyingParty | None:
        """None where browsers allow no passkeys: at a bare address, or without TLS on another machine."""
        split = urlsplit(base_url)
        host = split.hostname or ""
        if not host or ":" in host or host.rpartition(".")[2].isdigit():
            return None
        if split.scheme != "https" and host != "localhost":
            return None
        return cls(host, f"{split.scheme}://{split.netloc}".lower())


@attrs.frozen
class NewPasskey:
    """A new passkey."""

    credential: bytes
    public_key: bytes
    sign_count: int
    backed_up: bool


@attrs.frozen
class PasskeyResponse:
    """What a browser sent. `ticket` is the challenge that it signed, not yet known to be ours."""

    fields: dict[str, Any] = attrs.field(repr=False)
    ticket: str
    credential: bytes
    owner: bytes | None

    @classmethod
    def read(cls, text: str) -> PasskeyResponse:
        try:
            fields: dict[str, Any] = json.loads(text) if len(text) <= LONGEST else {}
            response = fields["response"]
            handle = response.get("userHandle")
            return cls(
                fields,
                tickets.in_challenge(response["clientDataJSON"]),
                webauthn.base64url_to_bytes(fields["rawId"]),
                webauthn.base64url_to_bytes(handle) if handle else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise PasskeyError("the answer cannot be read") from None


def registration_options(relying_party: RelyingParty, user: User, ticket: str, known: Sequence[Passkey]) -> str:
    """What `navigator.credentials.create` is given, as JSON. One device makes one passkey."""
    options = webauthn.generate_registration_options(
        rp_id=relying_party.id,
        rp_name="mailsvc",
        user_id=user.id.bytes,
        user_name=user.email,
        user_display_name=user.name or user.email,
        challenge=ticket.encode(),
        authenticator_selection=AuthenticatorSelectionCriteria(resident_key=ResidentKeyRequirement.PREFERRED, user_verification=_VERIFIED),
        exclude_credentials=[PublicKeyCredentialDescriptor(id=one.credential) for one in known],
    )
    return webauthn.options_to_json(options)


def authentication_options(relying_party: RelyingParty, ticket: str, known: Sequence[Passkey] = ()) -> str:
    """What `navigator.credentials.get` is given, as JSON. Without `known`: any passkey of this relying_party."""
    options = webauthn.generate_authentication_options(
        rp_id=relying_party.id,
        challenge=ticket.encode(),
        allow_credentials=[PublicKeyCredentialDescriptor(id=one.credential) for one in known],
        user_verification=_VERIFIED,
    )
    return webauthn.options_to_json(options)


def verify_registration(relying_party: RelyingParty, answer: PasskeyResponse) -> NewPasskey:
    """The new passkey, or PasskeyError. The ticket has been judged by now."""
    try:
        found = webauthn.verify_registration_response(
            credential=answer.fields,
            expected_challenge=answer.ticket.encode(),
            expected_rp_id=relying_party.id,
            expected_origin=relying_party.origin,
            require_user_verification=True,
        )
    except Exception as error:  # whatever a stranger's octets lead to
        raise PasskeyError(str(error)) from None
    return NewPasskey(found.credential_id, found.credential_public_key, found.sign_count, found.credential_backed_up)


def verify_authentication(relying_party: RelyingParty, answer: PasskeyResponse, passkey: Passkey) -> tuple[int, bool]:
    """The new count, and whether the passkey is backed up; or PasskeyError. Whether the count has grown is for the store to say."""
    if answer.owner is not None and answer.owner != passkey.user_id.bytes:
        raise PasskeyError("the passkey is said to be somebody else's")
    try:
        found = webauthn.verify_authentication_response(
            credential=answer.fields,
            expected_challenge=answer.ticket.encode(),
            expected_rp_id=relying_party.id,
            expected_origin=relying_party.origin,
            credential_public_key=passkey.public_key,
            credential_current_sign_count=0,
            require_user_verification=True,
        )
    except Exception as error:  # whatever a stranger's octets lead to
        raise PasskeyError(str(error)) from None
    return found.new_sign_count, found.credential_backed_up
