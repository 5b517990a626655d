"""Composes a message from a draft (RFC 5322, 2045–2047): CRLF, the same bytes for the same draft, 7-bit except for attached messages.

mixed(alternative(text, related(html, inline files)), attachments), without layers that would have a single part.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b

import attrs

from mailsvc.mail import header, parameters, transfer_encoding
from mailsvc.mail.address import Mailbox
from mailsvc.mail.encoded_template import Encoded

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_MESSAGE_ID = re.compile(r"<[!-;=?A-~]{1,400}@[!-;=?A-~]{1,400}>")
_CONTENT_ID = re.compile(r"[!-;=?-~]{1,127}")
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`{|}~-]+"
_CONTENT_TYPE = re.compile(rf'{_TOKEN}/{_TOKEN}(?: *; *{_TOKEN}=(?:{_TOKEN}|"[ !#-\[\]-~]*"))*;?')
_TYPES = mimetypes.MimeTypes().types_map[1] | {  # without the lists of this machine, so that all machines agree
    ".7z": "application/x-7z-compressed",
    ".avif": "image/avif",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".gz": "application/gzip",
    ".heic": "image/heic",
    ".ics": "text/calendar",
    ".md": "text/markdown",
    ".odp": "application/vnd.oasis.opendocument.presentation",
    ".ods": "application/vnd.oasis.opendocument.spreadsheet",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".pkpass": "application/vnd.apple.pkpass",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".webp": "image/webp",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_ANY_FILE = "application/octet-stream"
_BETWEEN_ADDRESSES = str.maketrans("<>,;", "    ")
_MESSAGE = "message/rfc822"
_TOO_LARGE = f"The headers, subject included, are larger than {header.BLOCK_LIMIT // 1024} kB. Shorten them."
FILENAME_MAX = 1000  # characters
ATTACHMENTS_MAX = 900  # fewer parts than mime.parse reads


class ComposeError(ValueError):
    """A draft that cannot be composed. `field` names the invalid field; the text is a message for the client."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@attrs.frozen
class Attachment:
    """A file. With a `content_id`, the HTML can show it as `cid:` and that ID."""

    content: bytes = attrs.field(repr=False)
    filename: str | None = None
    content_type: str | None = None  # None: by file extension
    content_id: str | None = None


@attrs.frozen
class Draft:
    """The contents of an email."""

    sender: Mailbox
    to: tuple[Mailbox, ...]
    subject: str
    date: datetime
    message_id: str  # with angle brackets; boundaries derive from it
    cc: tuple[Mailbox, ...] = ()
    bcc: tuple[Mailbox, ...] = ()  # only in the envelope, never in the message
    reply_to: tuple[Mailbox, ...] = ()
    html: str | Encoded | None = attrs.field(default=None, repr=False)
    text: str | Encoded | None = attrs.field(default=None, repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict)
    attachments: tuple[Attachment, ...] = ()


def compose(draft: Draft) -> bytes:
    """Composes the message, in ASCII except for addresses that need SMTPUTF8 and attached messages. Raises ComposeError."""
    head = _header(draft)
    pieces = _body(draft)
    return b"".join([head, *pieces, b"\r\n"])


def rfc5322_date(when: datetime) -> str:
    """Formats a date (5322 §3.3) in its own time zone."""
    zone = "+0000" if when.tzinfo is UTC else _zone(when)
    day = f"{_DAYS[when.weekday()]}, {when.day:02} {_MONTHS[when.month - 1]} {when.year:04}"
    return f"{day} {when.hour:02}:{when.minute:02}:{when.second:02} {zone}"


def _zone(when: datetime) -> str:
    offset = when.utcoffset()
    if offset is None:
        raise ComposeError("date", "The date has no time zone.")
    sign, minutes = ("-", -offset) if offset.days < 0 else ("+", offset)
    hours, rest = divmod(int(minutes.total_seconds()) // 60, 60)
    return f"{sign}{hours:02}{rest:02}"


# --- header ----------------------------------------------------------------------------------------------------------


def _header(draft: Draft) -> bytes:
    if not _MESSAGE_ID.fullmatch(draft.message_id):
        raise ComposeError("message_id", "The message ID must have the form <left@right>.")
    if len(draft.subject) + sum(len(name) + len(value) for name, value in draft.headers.items()) > header.BLOCK_LIMIT:
        raise ComposeError("headers", _TOO_LARGE)  # before doing any work
    fields = [header.mailboxes("From", (draft.sender,))]
    for name, boxes in (("To", draft.to), ("Cc", draft.cc), ("Reply-To", _reply_to(draft))):
        if boxes:
            fields.append(header.mailboxes(name, boxes))
    fields.append(_subject(draft.subject))
    fields.append(f"Date: {rfc5322_date(draft.date)}\r\n")
    fields.append(header.fold("Message-ID", (" " + draft.message_id,)))
    if draft.headers:
        fields += _custom(draft)
    fields.append("MIME-Version: 1.0\r\n")
    block = "".join(fields)
    if len(block) > header.BLOCK_LIMIT:
        raise ComposeError("headers", _TOO_LARGE)
    return block.encode("utf-8")


def _subject(subject: str) -> str:
    try:
        return header.unstructured("Subject", subject)
    except header.HeaderError as error:
        raise ComposeError("subject", str(error)) from None


def _custom(draft: Draft) -> list[str]:
    try:
        header.check_custom(draft.headers)
        written = [header.custom(name, value) for name, value in draft.headers.items()]
    except header.HeaderError as error:
        raise ComposeError("headers", str(error)) from None
    return written


def _reply_to(draft: Draft) -> tuple[Mailbox, ...]:
    """Returns nothing if a custom Reply-To names these addresses as well. Symfony Mailer sends both; its header has the display names."""
    custom = [value for name, value in draft.headers.items() if name.lower() == "reply-to"] if draft.reply_to else []
    if not custom:
        return draft.reply_to
    named = set(custom[0].lower().translate(_BETWEEN_ADDRESSES).split())
    if not named.issuperset(box.address.lower() for box in draft.reply_to):
        raise ComposeError("headers", "The header Reply-To and the `reply_to` field name different addresses. Give one of them only.")
    return ()


# --- body ------------------------------------------------------------------------------------------------------------


def _body(draft: Draft) -> list[bytes]:
    """The body entity in pieces: its fields, an empty line, its content. The caller adds the final CRLF."""
    if len(draft.attachments) > ATTACHMENTS_MAX:
        raise ComposeError("attachments", f"An email can have at most {ATTACHMENTS_MAX} attachments.")
    inline: list[list[bytes]] = []
    attached: list[list[bytes]] = []
    for index, attachment in enumerate(draft.attachments):
        if attachment.content_id is not None and draft.html:
            inline.append(_file(attachment, "inline", index))
        else:
            attached.append(_file(attachment, "attachment", index))
    seed = _seed(draft)
    views: list[list[bytes]] = []
    if draft.text or not draft.html:
        views.append(_text("text", draft.text or ""))
    if draft.html:
        html = _text("html", draft.html)
        views.append(_multipart("related", seed, [html, *inline]) if inline else html)
    content = _multipart("alternative", seed, views) if len(views) > 1 else views[0]
    if not attached:
        return content
    if not draft.text and not draft.html:
        return _multipart("mixed", seed, attached)
    return _multipart("mixed", seed, [content, *attached])


def _seed(draft: Draft) -> str:
    """No encoded content contains `=_` (2045 §6.7), so none can contain a boundary. Attached messages, which are not encoded, cannot
    contain their own hash."""
    digest = blake2b(draft.message_id.encode(), digest_size=9)
    for index, attachment in enumerate(draft.attachments):
        if _content_type(attachment, index)[0].lower() == _MESSAGE:
            digest.update(attachment.content)
    return digest.hexdigest()


def _multipart(kind: str, seed: str, parts: list[list[bytes]]) -> list[bytes]:
    boundary = f"=_{kind[0]}{seed}"
    related = 'type="text/html";\r\n ' if kind == "related" else ""  # 2387 §3.1
    pieces = [f'Content-Type: multipart/{kind}; {related}boundary="{boundary}"\r\n'.encode()]
    if not all(piece.isascii() for part in parts for piece in part):
        pieces.append(b"Content-Transfer-Encoding: 8bit\r\n")  # 2045 §6.4: as its parts
    between = f"\r\n--{boundary}\r\n".encode()
    for part in parts:
        pieces.append(between)
        pieces += part
    pieces.append(f"\r\n--{boundary}--".encode())
    return pieces


_TEXT_TYPES = {"text": "plain", "html": "html"}


def _text(field: str, text: str | Encoded) -> list[bytes]:
    encoding, encoded = (text.encoding, text.data) if isinstance(text, Encoded) else _encoded(field, text)
    fields = f"Content-Type: text/{_TEXT_TYPES[field]}; charset=utf-8\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n"
    return [fields.encode(), encoded]


def _encoded(field: str, text: str) -> tuple[str, bytes]:
    if "\x00" in text:
        raise ComposeError(field, f"The {field} must not contain NUL characters.")
    try:
        return transfer_encoding.encode_text(text)
    except UnicodeEncodeError:
        raise ComposeError(field, f"The {field} contains lone surrogates, which are not characters.") from None


def _file(attachment: Attachment, disposition: str, index: int) -> list[bytes]:
    """`index`: its position among the attachments, for errors."""
    name = attachment.filename
    if name is not None and len(name) > FILENAME_MAX:
        raise _wrong(index, "filename", f"can have at most {FILENAME_MAX} characters")
    if name is not None and header.FORBIDDEN.search(name):
        raise _wrong(index, "filename", "must not contain line breaks, other control characters or lone surrogates")
    kind, named = _content_type(attachment, index)
    encoded = transfer_encoding.unencoded(attachment.content) if kind.lower() == _MESSAGE else None  # 2046 §5.2.1
    if encoded is None and kind.lower() == _MESSAGE:
        kind, named = _ANY_FILE, []
    encoding, content = encoded or ("base64", transfer_encoding.encode_base64(attachment.content))
    try:
        fields = [
            header.structured("Content-Type", kind, named),
            header.structured("Content-Disposition", disposition, parameters.encode("filename", name) if name else ()),
            f"Content-Transfer-Encoding: {encoding}\r\n",
        ]
        if attachment.content_id is not None:
            fields.append(header.fold("Content-ID", (f" <{_content_id(attachment.content_id, index)}>",)))
    except header.HeaderError as error:
        raise ComposeError("attachments", f"The `attachments[{index}]` field is invalid. {error}") from None
    return ["".join([*fields, "\r\n"]).encode(), content]


def _content_type(attachment: Attachment, index: int) -> tuple[str, list[str]]:
    """Returns the type and its parameters, including `name` for old clients."""
    name = attachment.filename
    given = attachment.content_type or _TYPES.get("." + (name or "").rpartition(".")[2].lower(), _ANY_FILE)
    if len(given) > 255 or not _CONTENT_TYPE.fullmatch(given):
        raise _wrong(index, "content_type", "must have the form type/subtype")
    kind, *rest = [part.strip() for part in given.rstrip("; ").split(";")] if '"' not in given else [given.rstrip("; ")]
    if kind.lower().startswith(("multipart/", "message/")) and kind.lower() != _MESSAGE:  # 2045 §6.4: these must not be base64
        return _ANY_FILE, []
    if name and name.isascii() and len(name) <= 60 and not re.search(r";\s*name\s*=", given, re.IGNORECASE):
        rest += parameters.encode("name", name)
    return kind, rest


def _content_id(given: str, index: int) -> str:
    bare = given.removeprefix("<").removesuffix(">")
    if not _CONTENT_ID.fullmatch(bare):
        raise _wrong(index, "content_id", "must have 1 to 127 printable ASCII characters without spaces, < and >")
    return bare


def _wrong(index: int, field: str, why: str) -> ComposeError:
    return ComposeError("attachments", f"The `attachments[{index}].{field}` field {why}.")
