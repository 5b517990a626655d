"""The passkey protocol (WebAuthn level 2): options for browsers, and verification of their responses. Pure.

The device must verify its owner (PIN, fingerprint or face), so a passkey counts as two factors.
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

LONGEST = 20_000  # characters of a response
_VERIFIED = UserVerificationRequirement.REQUIRED


class PasskeyError(Exception):
    """A response of a passkey that is rejected. The text is for the log."""


@attrs.frozen
class RelyingParty:
    """What passkeys are bound to: a host name (`id`) and the origin of the pages."""

    id: str
    origin: str

    @classmethod
    def of(cls, base_url: str) -> RelyingParty | None:
        """None where browsers do not allow passkeys: for IP addresses, and without TLS except on localhost."""
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
    """A browser's response. `ticket` is the challenge that it signed, not yet verified."""

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
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise PasskeyError("the response cannot be parsed") from None


def registration_options(relying_party: RelyingParty, user: User, ticket: str, known: Sequence[Passkey]) -> str:
    """The options for `navigator.credentials.create`, as JSON. A device with one of the `known` passkeys makes no second one."""
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
    """The options for `navigator.credentials.get`, as JSON. Without `known`: any passkey of this relying party."""
    options = webauthn.generate_authentication_options(
        rp_id=relying_party.id,
        challenge=ticket.encode(),
        allow_credentials=[PublicKeyCredentialDescriptor(id=one.credential) for one in known],
        user_verification=_VERIFIED,
    )
    return webauthn.options_to_json(options)


def verify_registration(relying_party: RelyingParty, answer: PasskeyResponse) -> NewPasskey:
    """The new passkey. Raises PasskeyError. The caller has verified the ticket."""
    try:
        found = webauthn.verify_registration_response(
            credential=answer.fields,
            expected_challenge=answer.ticket.encode(),
            expected_rp_id=relying_party.id,
            expected_origin=relying_party.origin,
            require_user_verification=True,
        )
    except Exception as error:  # untrusted input may raise anything
        raise PasskeyError(str(error)) from None
    return NewPasskey(found.credential_id, found.credential_public_key, found.sign_count, found.credential_backed_up)


def verify_authentication(relying_party: RelyingParty, answer: PasskeyResponse, passkey: Passkey) -> tuple[int, bool]:
    """The new signature counter, and whether the passkey is backed up. Raises PasskeyError. The store checks that the counter grew."""
    if answer.owner is not None and answer.owner != passkey.user_id.bytes:
        raise PasskeyError("the user handle belongs to another user")
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
    except Exception as error:  # untrusted input may raise anything
        raise PasskeyError(str(error)) from None
    return found.new_sign_count, found.credential_backed_up
