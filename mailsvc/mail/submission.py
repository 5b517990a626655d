"""Reads the header of a submitted message, and makes the few changes that submission allows (RFC 6409 §8). The body is not read.

Removes `Bcc`, the fields that are only for this service, and spaces before the colon of signed fields (`Subject :`). Prepends `Received`,
and `Date` and `Message-ID` if they are missing or empty. All other bytes remain unchanged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache, partial
from itertools import chain, islice

import attrs

from mailsvc.mail import bulk, header
from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.mail.authentication.dkim import SIGNED
from mailsvc.mail.compose import rfc5322_date
from mailsvc.mail.header import Field, HeaderError

FIELDS_LIMIT = 1000
HOPS_LIMIT = 100  # 5321 §6.3: this many Received fields indicate a loop
KEYS = (b"idempotency-key", b"resend-idempotency-key")
_KEY_LIMIT = 256

_DROPPED = frozenset({*KEYS, b"bcc", b"resent-bcc", b"return-path"})  # 5322 §3.6.3; 5321 §4.4: only the last server adds Return-Path
# 5322 §3.6: at most once, because readers disagree on which one counts.
_ONCE = {name.lower().encode("ascii"): name for name in ("To", "Cc", "Reply-To", "Subject", "Date", "Sender", "Message-ID")}
_COLON = ord(":")
_BULK = {name.encode("ascii"): name for name in bulk.FIELDS}
_ADDED = (b"date", b"message-id")  # if the message has none, or an empty one
_UNCOUNTED = frozenset({*KEYS, *_ADDED})  # can differ between two submissions of the same mail
_MESSAGE_ID = re.compile(r"<[!-;=?-~]{1,400}@[!-;=?-~]{1,400}>")
_COMMENTED = re.compile(  # `root@example.com (Cron)` and `Root <root@example.com> (Cron)`; no address in angle brackets within the comment
    r"([^\s<>(),\"@]++@[^\s<>(),\"@]++|[^<>()@]*+<[^\s<>(),\"@]++@[^\s<>(),\"@]++>)\s*+\([^()<>]*+\)"
)
_TOKEN = re.compile(
    r'"(?>(?:[^"\\]|\\.)*)"?|\((?>(?:[^()\\]|\\.)*)\)?|[^,"()]++|.'
)  # of a list; a closing quote or parenthesis can be missing
_LIST = re.compile(r'[,"():;]')  # without any of these, it is a single address
_NOT_SHOWN = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)  # obs-unstruct allows control characters (5322 §4.1): sent unchanged, not displayed
_FOLD = re.compile(r"\r\n(?=[ \t])")
_SENDERS = (b"sender", b"resent-from", b"resent-sender")  # readers may show these as who sent it; 5322 §3.6.2, §3.6.6
_SENDERS_MOST = 20  # addresses in them that are compared
_NAMED_MOST = 1000  # addresses in a header that are read for display
_INTERNATIONAL_MOST = 30  # of them with an internationalized domain: each takes up to a millisecond


class Unfit(ValueError):
    """The message cannot be accepted. `kind`: "from", "content" or "loop". The text is a sentence for the sender."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@attrs.frozen
class Submitted:
    """The header of a submitted message. `head`: as received. `kept`: the fields that are not removed, each with its CRLF."""

    sender: Mailbox
    to: tuple[Mailbox, ...]
    cc: tuple[Mailbox, ...]
    reply_to: tuple[Mailbox, ...]
    subject: str
    message_id: str | None
    key: str | None  # the idempotency key
    head: bytes
    kept: bytes
    dated: bool
    bulk: bool = False

    @property
    def counted(self) -> bytes:
        """Returns the fields that must be equal in two submissions of the same mail."""
        return _without(_UNCOUNTED, header.split_fields(self.head))

    @property
    def utf8(self) -> bool:
        """Whether the header is not ASCII (6532)."""
        return not self.kept.isascii()

    def prefix(self, received: str, message_id: str, date: datetime) -> bytes:
        """Returns the fields to prepend to `kept`. `message_id` is used if the message has none."""
        lines = [received]
        if not self.dated:
            lines.append(f"Date: {rfc5322_date(date)}\r\n")  # 6409 §8.2
        if self.message_id is None:
            lines.append(header.fold("Message-ID", (" " + message_id,)))  # 6409 §8.3
        return "".join(lines).encode("ascii")


def read(head: bytes) -> Submitted:
    """Reads a header block, including the CRLF of its last field. Raises Unfit."""
    try:
        fields = header.split_fields(head)
    except HeaderError as error:
        raise Unfit("content", str(error)) from None
    if len(fields) > FIELDS_LIMIT:
        raise Unfit("content", f"The header has more than {FIELDS_LIMIT} fields.")
    named: dict[bytes, list[bytes]] = {}
    spaced = False  # before the colon of any field
    for line, name, raw in fields:
        named.setdefault(name.lower(), []).append(raw)
        spaced = spaced or line[len(name)] != _COLON
    if len(named.get(b"received", ())) >= HOPS_LIMIT:
        raise Unfit("loop", "The message has passed too many servers.")
    dropped = _DROPPED | {name for name in _ADDED if name in named and not named[name][0].strip()}
    for name, found in named.items():
        if len(found) > 1 and name in _ONCE:
            raise Unfit("content", f"The message has more than one {_ONCE[name]} header.")
    return Submitted(
        sender=_sender(named.get(b"from", ())),
        to=_mailboxes(named.get(b"to", ())),
        cc=_mailboxes(named.get(b"cc", ())),
        reply_to=_mailboxes(named.get(b"reply-to", ())),
        subject=_NOT_SHOWN.sub("", _value(named[b"subject"][0])) if b"subject" in named else "",
        message_id=_message_id(named.get(b"message-id", ())),
        key=_key([raw for name in KEYS for raw in named.get(name, ())]),
        head=head,
        kept=head if dropped.isdisjoint(named) and head.endswith(b"\r\n") and not spaced else _without(dropped, fields),
        dated=b"date" in named and b"date" not in dropped,
        bulk=not named.keys().isdisjoint(_BULK)
        and bulk.is_declared({name: _value(named[key][0]) for key, name in _BULK.items() if key in named}),
    )


def lines(head: bytes) -> list[tuple[str, bytes]]:
    """Returns the fields of a header block that `read` accepted: the name in lower case, and the whole field with its CRLF."""
    return [(name.decode("ascii").lower(), line) for line, name, _ in header.split_fields(head)]


def other_sender(mail: Submitted) -> str | None:
    """Returns the name of a field besides From that has a sender outside of the domain of From, or that cannot be read."""
    items = [(name, item) for _, name, raw in header.split_fields(mail.kept) if name.lower() in _SENDERS for item in _items(_unfolded(raw))]
    for number, (name, item) in enumerate(items):
        if number >= _SENDERS_MOST or (item and _domain(item) != mail.sender.domain):
            return name.decode("ascii")
    return None


def _domain(item: str) -> str | None:
    try:
        return parse_mailbox(item, received=True).domain
    except AddressError:
        return None


def _without(names: frozenset[bytes], fields: Sequence[tuple[bytes, bytes, bytes]]) -> bytes:
    return b"".join([_written(*field) for field in fields if field[1].lower() not in names])


def _written(line: bytes, name: bytes, raw: bytes) -> bytes:
    """Returns the field. A signed one has no spaces before its colon."""
    return b"%b:%b\r\n" % (name, raw) if _is_spaced(line, name) else line


def _is_spaced(line: bytes, name: bytes) -> bool:
    """The spaces are obsolete (5322 §4.5): some servers do not find the field then, so they see no author, or refuse our signature."""
    return not line.startswith(b":", len(name)) and name.lower() in SIGNED


def _value(raw: bytes) -> str:
    return Field("", raw).value


def fingerprint(envelope: Sequence[str], counted: bytes) -> hashlib._Hash:
    """Hashes what must be equal in two submissions of the same mail. The caller adds the body."""
    digest = hashlib.sha256()
    for part in (*(text.encode("utf-8", "surrogateescape") for text in envelope), counted):
        digest.update(b"%d:" % len(part) + part)
    return digest


def received(host: str, protocol: str, identity: str, tls: str | None, date: datetime) -> str:
    """Returns the trace field (5321 §4.4, 8314 §4.3). It does not reveal the client: neither its address nor its EHLO name."""
    tokens = [f" by {host}", f" with {protocol}", f" id {identity}"]
    if tls:
        tokens.append(f" tls {tls}")
    tokens[-1] += ";"
    return header.fold("Received", [*tokens, f" {rfc5322_date(date)}"])


def _sender(fields: Sequence[bytes]) -> Mailbox:
    """Returns the only author (6409 §6.3). All readers must agree on its domain."""
    if len(fields) != 1:
        raise Unfit("from", "The message needs a From header." if not fields else "The message has more than one From header.")
    text = _unfolded(fields[0])
    commented = _COMMENTED.fullmatch(text) if text.endswith(")") else None
    if commented is not None:
        text = commented[1]
    try:
        mailbox = _author(text)
        if "\ufffd" in mailbox.local:
            raise AddressError("The part before the @ is not valid UTF-8.")
        if mailbox.local[0] == '"' and text[text.rindex("@") - 1] != '"':  # the header is sent as it is, and receivers are strict about it
            raise AddressError("The part before the @ must be in quotes because of its dots.")
        return mailbox
    except AddressError as error:
        raise Unfit("from", f"The From header is not one address: {error}") from None


_author = lru_cache(maxsize=1000)(partial(parse_mailbox, received=True))  # senders repeat


def _unfolded(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    if "\r" in text:
        text = _FOLD.sub("", text)
    return text.replace("\t", " ").strip()


def _mailboxes(fields: Sequence[bytes]) -> tuple[Mailbox, ...]:
    """Returns the mailboxes for display. Leaves out invalid and costly ones, because the envelope determines the recipients."""
    found: list[Mailbox] = []
    international = 0
    items = chain.from_iterable(map(_items, map(_unfolded, fields)))
    for item in islice(items, _NAMED_MOST):
        if not item.isascii() or "--" in item:
            international += _is_international(item)
            if international > _INTERNATIONAL_MOST:
                continue
        try:
            found.append(parse_mailbox(item, received=True))
        except AddressError:
            continue
    return tuple(found)


def _is_international(item: str) -> bool:
    domain = item.rpartition("@")[2].lower()
    return not domain.isascii() or "xn--" in domain


def _items(text: str) -> Iterable[str]:
    """Returns the items of a comma-separated list, without comments and the names of groups (5322 §3.4)."""
    return (text,) if _LIST.search(text) is None else _split(text)


def _split(text: str) -> Iterator[str]:
    item: list[str] = []
    for token in _TOKEN.findall(text):
        if token == ",":
            yield _bare("".join(item))
            item.clear()
        elif not token.startswith("("):
            item.append(token)
    yield _bare("".join(item))


def _bare(item: str) -> str:
    head, colon, rest = item.partition(":")
    return (rest if colon and not set(head) & set('"<@') else item).strip(" ;")


def _message_id(fields: Sequence[bytes]) -> str | None:
    if not fields:
        return None
    text = _unfolded(fields[0])[:998]
    found = _MESSAGE_ID.search(text)
    return found[0] if found else text or None


def _key(fields: Sequence[bytes]) -> str | None:
    if not fields:
        return None
    keys = {_value(raw) for raw in fields}
    if len(keys) > 1:
        raise Unfit("content", "The message has two different idempotency keys.")
    key = keys.pop()
    if not 1 <= len(key) <= _KEY_LIMIT:
        raise Unfit("content", f"The idempotency key must have 1 to {_KEY_LIMIT} characters.")
    if "\0" in key:  # from an encoded word; the database does not store it
        raise Unfit("content", "The idempotency key must not have a NUL character.")
    return key
