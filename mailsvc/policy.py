"""May this account send this email? Pure: facts in, a refusal or nothing out.

What needs the database at the moment of acceptance (idempotency) is decided in store/mail/accept; what is wrong with the
shape of a request is said by the door that read it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol
from uuid import UUID

import attrs

from mailsvc.mail.compose import FILENAME_MOST

MESSAGE_MAX = 41_943_040  # octets of a message as it goes out: 40 MiB

# Endings of file names that large receivers refuse whatever the file is: programs, scripts, installers, shortcuts, certificates.
BLOCKED_ENDINGS = tuple(
    (
        "adp app asp bas bat cer chm cmd com cpl crt csh der exe fxp gadget hlp hta inf ins isp its js jse ksh lib lnk mad maf mag mam maq "
        "mar mas mat mau mav maw mda mdb mde mdt mdw mdz msc msh msh1 msh1xml msh2 msh2xml mshxml msi msp mst ops pcd pif plg prf prg ps1 "
        "ps1xml ps2 ps2xml psc1 psc2 reg scf scr sct shb shs sys tmp url vb vbe vbs vps vsmacros vss vst vsw vxd ws wsc wsf wsh xnk"
    ).split()
)

Kind = Literal["domain", "key", "recipients", "size", "schedule", "content", "attachment"]


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
    blocked_endings: frozenset[str] = frozenset(BLOCKED_ENDINGS)  # of attachments' file names, lower case, without the dot


class SendingDomain(Protocol):
    """What is asked of a domain: store/domains/domains has the real one."""

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


def attachments_refusal(names: Sequence[str | None], limits: Limits) -> Refusal | None:
    """Whether receivers would refuse an attachment for its file name; `names` in the order of the attachments."""
    for index, name in enumerate(names):
        if name is None or len(name) > FILENAME_MOST:  # mail/compose refuses a longer one
            continue
        _, dot, ending = name.rstrip(". ").rpartition(".")  # Windows drops dots and spaces at the end of a file name
        if dot and ending.lower() in limits.blocked_endings:
            field = f"attachments[{index}].filename"
            return Refusal(
                "attachment", field, f"The `{field}` field ends in `.{ending.lower()}`. Many receivers refuse files of this type."
            )
    return None


def size_refusal(size: int, limits: Limits) -> Refusal | None:
    """Whether a message of `size` octets, as it goes out, is within the limit."""
    if size <= limits.message:
        return None
    return Refusal("size", None, f"The email is {size} bytes as it goes out; the limit is {limits.message} bytes.")
