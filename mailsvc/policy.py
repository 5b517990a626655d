"""Can this account send this email? Pure: facts in, a refusal or None out.

What has to be decided by the database (idempotency) is in `store/mail/accept`, the validation of requests in `http/fields` and `relay/`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol
from uuid import UUID

import attrs

from mailsvc.mail.compose import FILENAME_MAX

MESSAGE_MAX = 41_943_040  # bytes of a message as it is sent: 40 MiB

# File name extensions that large receivers refuse: programs, scripts, installers, shortcuts, certificates.
BLOCKED_ENDINGS = tuple(
    (
        "adp app asp bas bat cer chm cmd com cpl crt csh der exe fxp gadget hlp hta inf ins isp its js jse ksh lib lnk mad maf mag mam maq "
        "mar mas mat mau mav maw mda mdb mde mdt mdw mdz msc msh msh1 msh1xml msh2 msh2xml mshxml msi msp mst ops pcd pif plg prf prg ps1 "
        "ps1xml ps2 ps2xml psc1 psc2 reg scf scr sct shb shs sys tmp url vb vbe vbs vps vsmacros vss vst vsw vxd ws wsc wsf wsh xnk"
    ).split()
)

# "filter": refused by the content filter; "later": it could not or would not decide now
Kind = Literal["domain", "key", "recipients", "size", "schedule", "content", "attachment", "filter", "later"]


@attrs.frozen
class Refusal:
    """Why an email was not accepted. HTTP and SMTP have a status for each `kind`; `message` is a sentence for people.

    `field` is the wrong field as the API calls it, None if it is not about one field.
    """

    kind: Kind
    field: str | None
    message: str


@attrs.frozen
class Limits:
    """Limits that an operator can set. Counts are addresses, sizes are bytes."""

    recipients_per_field: int = 50
    recipients: int = 1000
    message: int = MESSAGE_MAX
    blocked_endings: frozenset[str] = frozenset(BLOCKED_ENDINGS)  # extensions of attachments, in lower case, without the dot


class SendingDomain(Protocol):
    """A sending domain; the real one is store/domains/values.Domain."""

    @property
    def id(self) -> UUID: ...
    @property
    def name(self) -> str: ...
    @property
    def may_send(self) -> bool: ...
    @property
    def missing(self) -> str | None: ...


def domain_refusal(name: str, domain: SendingDomain | None, key_domain: UUID | None) -> Refusal | None:
    """Check that the account has verified exactly this domain, and that the API key can send from it."""
    if domain is None or not domain.may_send:
        missing = f" {domain.missing}" if domain is not None and domain.missing else ""
        return Refusal("domain", "from", f"The `{name}` domain is not verified. Please, add and verify your domain.{missing}")
    if key_domain is not None and domain.id != key_domain:
        return Refusal("key", "from", f"This API key cannot send from the `{name}` domain.")
    return None


_NOUNS = {"reply_to": "addresses"}


def recipients_refusal(fields: Mapping[str, Collection[str]], limits: Limits) -> Refusal | None:
    """Check that there is a recipient and that no field has too many addresses. `fields`: `to`, `cc`, `bcc` and `reply_to`."""
    if not fields["to"]:
        return Refusal("recipients", "to", "The `to` field needs at least one recipient.")
    for name, addresses in fields.items():
        if len(addresses) > limits.recipients_per_field:
            return Refusal(
                "recipients", name, f"The `{name}` field can have at most {limits.recipients_per_field} {_NOUNS.get(name, 'recipients')}."
            )
    return None


def attachments_refusal(names: Sequence[str | None], limits: Limits) -> Refusal | None:
    """Check the file names of the attachments, in their order, for extensions that receivers refuse."""
    for index, name in enumerate(names):
        if name is None or len(name) > FILENAME_MAX:  # mail/compose refuses a longer one
            continue
        _, dot, ending = name.rstrip(". ").rpartition(".")  # Windows drops dots and spaces at the end of a file name
        if dot and ending.lower() in limits.blocked_endings:
            field = f"attachments[{index}].filename"
            return Refusal(
                "attachment", field, f"The `{field}` field ends in `.{ending.lower()}`. Many receivers refuse files of this type."
            )
    return None


def size_refusal(size: int, limits: Limits) -> Refusal | None:
    """Check the size of a message as it is sent."""
    if size <= limits.message:
        return None
    return Refusal("size", None, f"The email is {size} bytes as it is sent; the limit is {limits.message} bytes.")
