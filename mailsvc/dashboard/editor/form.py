"""The form of the editor: from a draft to its fields, and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import attrs
import orjson

from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.settings.audience import Broadcasts
from mailsvc.store.broadcasts.values import Content
from mailsvc.store.broadcasts.versions import Draft

CONTENT_MAX = 1 << 20  # characters of the HTML, of the text and of the editor's document


@attrs.frozen
class Wrong(Exception):
    """What is wrong with the form: a sentence for each field."""

    errors: Mapping[str, str]


def fields(draft: Draft) -> dict[str, str]:
    """The values of the form's fields."""
    content = draft.content
    try:
        sender = parse_mailbox(content.sender)
        name, local, domain = sender.name, sender.local, sender.domain
    except AddressError:
        name, local, domain = "", content.sender, ""
    return {
        "name": content.name, "subject": content.subject, "preview_text": content.preview_text,
        "from_name": name, "from_local": local, "from_domain": domain, "reply_to": ", ".join(content.reply_to),
        "segment": str(content.segment_id or ""), "topic": str(content.topic_id or ""),
        "html": content.html or "", "text": content.text or "", "document": draft.document or "",
    }  # fmt: skip


def read(form: Mapping[str, str], before: Draft, limits: Broadcasts) -> Draft:
    """The draft that the form describes; fields that it lacks stay as they are. Raises Wrong."""
    errors: dict[str, str] = {}
    was = fields(before)
    given = {name: form.get(name, value) for name, value in was.items()}
    lengths = {"name": ("name", limits.name), "subject": ("subject", limits.subject), "preview_text": ("preview text", limits.preview)}
    for name, (label, most) in lengths.items():
        given[name] = " ".join(given[name].split())
        if len(given[name]) > most:
            errors[name] = f"The {label} can have at most {most} characters."
    for name in ("html", "text", "document"):
        if len(given[name]) > CONTENT_MAX:
            errors[name] = "The content is too long. It can have at most 1 MB."
    document = given["document"] or None
    if document is not None and not _is_document(document):
        errors["document"] = "The content of the editor couldn’t be read. Reload the page and try again."
    content = Content(
        name=given["name"] or given["subject"] or "Untitled",
        subject=given["subject"],
        preview_text=given["preview_text"],
        sender=_sender(given, before, errors),
        reply_to=_reply_to(given["reply_to"], limits.reply_to, errors),
        segment_id=_id("segment", given["segment"], errors),
        topic_id=_id("topic", given["topic"], errors),
        html=_lines(given["html"]) or None,
        text=_text(given["text"], was["text"], before) if document is None else None,
    )
    if errors:
        raise Wrong(errors)
    return Draft(content=content, document=document)


def _sender(given: Mapping[str, str], before: Draft, errors: dict[str, str]) -> str:
    """A sender without an address stays empty, so that other fields can be saved before it is known."""
    local, domain = given["from_local"].strip(), given["from_domain"].strip()
    if not local or not domain:
        return before.content.sender if not domain and local == before.content.sender else ""
    try:
        return Mailbox(" ".join(given["from_name"].split()), local, parse_mailbox(f"x@{domain}").domain).display
    except AddressError as wrong:
        errors["from_local"] = str(wrong)
        return ""


def _reply_to(text: str, most: int, errors: dict[str, str]) -> tuple[str, ...]:
    found = [each.strip() for each in _separated(text) if each.strip()]
    try:
        if len(found) > most:
            raise AddressError(f"Enter at most {most} addresses.")
        return tuple(parse_mailbox(each).display for each in found)
    except AddressError as wrong:
        errors["reply_to"] = str(wrong)
        return ()


def _separated(text: str) -> list[str]:
    """The parts between commas or semicolons. Those in a name in quotation marks separate nothing."""
    found, start, quoted, escaped = list[str](), 0, False, False
    for at, character in enumerate(text):
        if character in ",;" and not quoted:
            found.append(text[start:at])
            start = at + 1
        quoted ^= character == '"' and not escaped
        escaped = character == "\\" and quoted and not escaped
    return [*found, text[start:]]


def _id(name: str, text: str, errors: dict[str, str]) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        errors[name] = f"Choose a {name} from the list."
        return None


def _text(given: str, was: str, before: Draft) -> str | None:
    """Empty: made from the HTML, unless the broadcast was created to have no text part."""
    return before.content.text if _lines(given) == _lines(was) else _lines(given) or None


def _lines(text: str) -> str:
    """Forms send CRLF."""
    return text.replace("\r\n", "\n")


def _is_document(text: str) -> bool:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and found.get("type") == "doc"
