"""Reads notifications of Amazon SES about bounces and complaints: JSON in the text of a mail, as Amazon SNS sends it.

The JSON is often inside a JSON string, and can be cut. So only the values that are needed are decoded.
"""

from __future__ import annotations

import json
import re
from typing import Any

from mailsvc.mail.reports.dsn_reader import ReportedRecipient, recipient_of
from mailsvc.mail.reports.feedback import Feedback
from mailsvc.mail.reports.report import Report

_RECIPIENTS = 200
_LONGEST = 64 * 1024  # characters of a value
_ESCAPED = re.compile(r'\\(["\\/])')


def read(mail: Report) -> tuple[ReportedRecipient, ...] | Feedback | None:
    """Returns the failed recipients, or a complaint. None if the mail is neither."""
    if "amazonaws.com" not in mail.fields.get("from", "").lower():
        return None
    text = mail.text
    bounced = [recipient_of(_fields(each)) for each in _objects(text, "bouncedRecipients")]
    if bounced:
        return tuple(each for each in bounced if each is not None)
    complained = tuple(_text(each.get("emailAddress")) for each in _objects(text, "complainedRecipients"))
    if not complained:
        return None
    return Feedback(_text(_value(text, "complaintFeedbackType")) or "abuse", _text(_value(text, "userAgent")), complained, "")


def _fields(given: dict[str, Any]) -> dict[str, str]:
    """The fields of a delivery status notification that say the same."""
    names = {"emailAddress": "final-recipient", "action": "action", "status": "status", "diagnosticCode": "diagnostic-code"}
    return {"action": "failed"} | {name: _text(given[key]) for key, name in names.items() if key in given}


def _objects(text: str, key: str) -> list[dict[str, Any]]:
    found = _value(text, key)
    return [each for each in found if isinstance(each, dict)][:_RECIPIENTS] if isinstance(found, list) else []


def _value(text: str, key: str) -> Any:
    """The value after the first `"key":`, also inside a JSON string. None if there is none, or if it is not complete."""
    at = text.find(f'"{key}')
    part = text[max(at - 1, 0) : at + _LONGEST] if at >= 0 else ""
    if part.startswith("\\"):
        part = _ESCAPED.sub(r"\1", part)
    _, found, rest = part.partition(f'"{key}"')
    rest = rest.lstrip()
    if not found or not rest.startswith(":"):
        return None
    try:
        return json.JSONDecoder().raw_decode(rest[1:].lstrip())[0]
    except (ValueError, RecursionError):
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
