"""The extensions that EHLO announces, and the parameters of MAIL and RCPT that belong to them. Pure.

SIZE 1870 · 8BITMIME 6152 · SMTPUTF8 6531 · DSN 3461 · AUTH= 4954 §5 · CHUNKING 3030 · LIMITS 9422
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import attrs

from mailsvc.mail.xtext import UTF8, from_utf8, from_xtext
from mailsvc.smtp.server.replies import Refused, bad_argument, bad_parameter

_PARAMETER = re.compile(rb"([A-Za-z0-9][A-Za-z0-9-]*)(?:=([\x21-\x3c\x3e-\x7e\x80-\xff]*))?")
_ORCPT = re.compile(r"([A-Za-z0-9-]+);(.+)")

Notify = Literal["NEVER", "SUCCESS", "FAILURE", "DELAY"]
_NOTIFY: dict[str, Notify] = {"NEVER": "NEVER", "SUCCESS": "SUCCESS", "FAILURE": "FAILURE", "DELAY": "DELAY"}


@attrs.frozen
class MailParameters:
    """The parameters of MAIL; None: not given."""

    size: int | None = None
    body: Literal["7BIT", "8BITMIME"] | None = None
    smtputf8: bool = False
    ret: Literal["FULL", "HDRS"] | None = None
    envid: str | None = None
    auth: str | None = None  # "<>" or a mailbox; not used


@attrs.frozen
class RcptParameters:
    """The parameters of RCPT; None: not given."""

    notify: frozenset[Notify] | None = None
    orcpt: tuple[str, str] | None = None  # address type, decoded address


NO_MAIL_PARAMETERS = MailParameters()
NO_RCPT_PARAMETERS = RcptParameters()


def ehlo_lines(*, size: int, recipients: int, mails: int | None, starttls: bool, login: bool) -> tuple[str, ...]:
    """The lines of the EHLO reply after the first. Ports only differ in `starttls` and `login` (relay/ports)."""
    limits = f"LIMITS RCPTMAX={recipients}" + (f" MAILMAX={mails}" if mails else "")
    lines = [f"SIZE {size}", "PIPELINING", "8BITMIME", "SMTPUTF8", "CHUNKING", "DSN", "ENHANCEDSTATUSCODES", limits]
    if starttls:
        lines.append("STARTTLS")
    if login:
        lines.append("AUTH PLAIN LOGIN")
    return tuple(lines)


def mail_parameters(text: bytes) -> MailParameters:
    """The parameters after the path of MAIL. Raises Refused with 501 or 555."""
    return MailParameters(**_read(text, _MAIL)) if text else NO_MAIL_PARAMETERS


def rcpt_parameters(text: bytes) -> RcptParameters:
    """The parameters after the path of RCPT. Raises Refused with 501 or 555."""
    return RcptParameters(**_read(text, _RCPT)) if text else NO_RCPT_PARAMETERS


Reader = Callable[[str | None], object]  # raises ValueError for an invalid value


def _read(text: bytes, readers: dict[str, Reader]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in filter(None, text.split(b" ")):
        found = _PARAMETER.fullmatch(word)
        name = found[1].decode("ascii").upper() if found is not None else ""
        if found is None or not (word.isascii() or name == "ORCPT"):  # 6533 §3
            raise Refused(bad_argument("Malformed parameter"))
        reader = readers.get(name)
        if reader is None:
            raise Refused(bad_parameter(f"Unknown parameter {name[:40]}"))
        if name.lower() in values:
            raise Refused(bad_argument(f"Duplicate parameter {name}"))
        try:
            values[name.lower()] = reader(None if found[2] is None else found[2].decode("utf-8"))
        except ValueError:
            raise Refused(bad_parameter(f"Invalid value of parameter {name}")) from None
    return values


def _size(value: str | None) -> int:
    if not value or len(value) > 20 or not value.isdigit():  # 1870 §5
        raise ValueError
    return int(value)


def _body(value: str | None) -> str:
    if value is None or value.upper() not in ("7BIT", "8BITMIME"):
        raise ValueError
    return value.upper()


def _smtputf8(value: str | None) -> bool:
    if value is not None:  # 6531 §3.4
        raise ValueError
    return True


def _ret(value: str | None) -> str:
    if value is None or value.upper() not in ("FULL", "HDRS"):
        raise ValueError
    return value.upper()


def _envid(value: str | None) -> str:
    if not value or len(value) > 100:  # 3461 §4.4
        raise ValueError
    return _decoded(value)


def _auth(value: str | None) -> str:
    if not value or len(value) > 500:
        raise ValueError
    return _decoded(value)


def _notify(value: str | None) -> frozenset[Notify]:
    words = (value or "").upper().split(",")
    if not all(word in _NOTIFY for word in words) or ("NEVER" in words and len(words) > 1):  # 3461 §4.1
        raise ValueError
    return frozenset(_NOTIFY[word] for word in words)


def _orcpt(value: str | None) -> tuple[str, str]:
    found = _ORCPT.fullmatch(value or "")
    if found is None or len(found[0].encode("utf-8")) > 500:  # 3461 §4.2
        raise ValueError
    address = from_utf8(found[2]) if found[1].lower() == UTF8 else from_xtext(found[2])  # 6533 §3
    if address is None:
        raise ValueError
    return found[1], address


def _decoded(value: str) -> str:
    text = from_xtext(value)
    if text is None:
        raise ValueError
    return text


_MAIL: dict[str, Reader] = {"SIZE": _size, "BODY": _body, "SMTPUTF8": _smtputf8, "RET": _ret, "ENVID": _envid, "AUTH": _auth}
_RCPT: dict[str, Reader] = {"NOTIFY": _notify, "ORCPT": _orcpt}
