"""May this account send this email? Pure: facts in, a refusal or nothing out.

What needs the database at the moment of acceptance (idempotency) is decided in store/accept; what is wrong with the
shape of a request is said by the door that read it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, Protocol
from uuid import UUID

import attrs

MESSAGE_MAX = 41_943_040  # octets of a message as it goes out: 40 MiB

Kind = Literal["domain", "key", "recipients", "size", "schedule", "content"]


@attrs.frozen
class Refusal:
    """Why an email was not accepted. Each door turns `kind` into its own status; `message` is a sentence for people.

    `field` is the API's name of what is wrong, None when it is not about one field.
    """

    kind: Kind
    field: str | None
    message: str


@attrs.frozen
class Limits:
    """What an operator may set. Counts are addresses, sizes are octets."""

    recipients_per_field: int = 50
    recipients: int = 1000
    message: int = MESSAGE_MAX


class SendingDomain(Protocol):
    """What is asked of a domain: store/domains has the real one."""

    @property
    def id(self) -> UUID: ...
    @property
    def name(self) -> str: ...
    @property
    def may_send(self) -> bool: ...
    @property
    def missing(self) -> str | None: ...


def domain_refusal(name: str, domain: SendingDomain | None, key_domain: UUID | None) -> Refusal | None:
    """Whether mail From `name` may leave: owned and proved (exactly this name), and within the key's own limits."""
    if domain is None or not domain.may_send:
        missing = f" {domain.missing}" if domain is not None and domain.missing else ""
        return Refusal("domain", "from", f"The `{name}` domain is not verified. Please, add and verify your domain.{missing}")
    if key_domain is not None and domain.id != key_domain:
        return Refusal("key", "from", f"This API key may not send from the `{name}` domain.")
    return None


_PEOPLE = {"reply_to": "addresses"}


def recipients_refusal(fields: Mapping[str, Collection[str]], limits: Limits) -> Refusal | None:
    """`to` has someone, and no field has too many addresses; `fields` has those of `to`, `cc`, `bcc` and `reply_to`."""
    if not fields["to"]:
        return Refusal("recipients", "to", "The `to` field needs at least one recipient.")
    for name, addresses in fields.items():
        if len(addresses) > limits.recipients_per_field:
            return Refusal(
                "recipients", name, f"The `{name}` field may have at most {limits.recipients_per_field} {_PEOPLE.get(name, 'recipients')}."
            )
    return None


def size_refusal(size: int, limits: Limits) -> Refusal | None:
    """Whether a message of `size` octets, as it goes out, is within the limit."""
    if size <= limits.message:
        return None
    return Refusal("size", None, f"The email is {size} bytes as it goes out; the limit is {limits.message} bytes.")
