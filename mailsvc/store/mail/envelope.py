"""The envelope parameters of an email as they are stored with it: what its submitter requested over SMTP, and what its delivery needs.

Its addresses are not here: recipients have rows of their own, and the envelope sender of an attempt is the return path.
What a client sends with MAIL and RCPT: smtp/server/extensions. What goes out with them: smtp/client/envelope.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Literal

import attrs

from mailsvc.mail.address import Mailbox

Ret = Literal["FULL", "HDRS"]


@attrs.frozen
class StoredEnvelope:
    """One email's parameters; `notify` and `orcpt` have an entry for each recipient, in order, or none at all."""

    sender: str = ""  # as the client gave it in MAIL: notifications go there; "": nobody gets any
    report: bool = False  # the email reports on another one and is sent from the null reverse-path (3464 §2)
    smtputf8: bool = False
    utf8_header: bool = False  # the header has non-ASCII addresses: servers without SMTPUTF8 get it in ASCII
    ret: Ret | None = None  # 3461 §4.3
    envid: str | None = None  # 3461 §4.4, decoded
    notify: tuple[str | None, ...] = ()  # 3461 §4.1, as the keywords are written in RCPT
    orcpt: tuple[str | None, ...] = ()  # 3461 §4.2: type and decoded address
    trace: str | None = None  # the traceparent of its acceptance, if that is traced (runtime/tracing)

    @classmethod
    def read(cls, stored: Mapping[str, Any] | None) -> StoredEnvelope:
        """From the stored form. Keys that a newer version has added are ignored: a stored envelope is never written back."""
        if not stored:
            return EMPTY
        ret = stored.get("ret")
        return cls(
            sender=str(stored.get("sender") or ""),
            report=stored.get("report") is True,
            smtputf8=stored.get("smtputf8") is True,
            utf8_header=stored.get("utf8_header") is True,
            ret=ret if ret in ("FULL", "HDRS") else None,
            envid=stored.get("envid"),
            notify=tuple(stored.get("notify") or ()),
            orcpt=tuple(stored.get("orcpt") or ()),
            trace=stored.get("trace"),
        )

    def stored(self) -> dict[str, object] | None:
        """The stored form, a JSON object of what is set; None if nothing is."""
        if self is EMPTY:
            return None
        named = zip(_NAMES, _VALUES(self), strict=True)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in named if value} or None


EMPTY = StoredEnvelope()
_NAMES = tuple(field.name for field in attrs.fields(StoredEnvelope))
_VALUES = attrgetter(*_NAMES)


def for_header(sender: Mailbox, others: Iterable[Mailbox]) -> StoredEnvelope:
    """What a composed header with these addresses needs.

    Servers refuse a message without an address in From, so it fails without SMTPUTF8. Other fields can do without addresses.
    """
    if sender.needs_smtputf8:
        return StoredEnvelope(smtputf8=True)
    return StoredEnvelope(utf8_header=True) if any(box.needs_smtputf8 for box in others) else EMPTY
