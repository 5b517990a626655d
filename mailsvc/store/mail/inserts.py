"""How emails become rows: one JSON document carries everything but the messages, and one statement distributes it over the tables.

One parameter instead of about fifty per email makes a shared commit cheap, because the server parses one text. The messages are
concatenated in a second, binary parameter, and the document has their positions. The same statement leaves out recipients on the
account's suppression list and returns them. Which emails are committed together: store/mail/accept.

`_EMAILS` lists the columns of the table emails, insert_emails.sql those of the others. `_row` fills both by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

import orjson

from mailsvc.store.events.event_data import Schedule
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.compression import compressed
from mailsvc.store.mail.dsn_requests import FAILURE, notify_bits
from mailsvc.store.mail.spooled import PIECE
from mailsvc.store.mail.values import NewEmail, Pieces
from mailsvc.store.postgres.errors import DataRejected
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.sql import statement

Hashes = Callable[[str], Mapping[int, bytes]]  # the keyed hashes of an address (store/privacy/keyed_hash)

SHARDS = 16  # of the ledger, by account
STATEMENT = 512 * 1024  # about the maximum number of message bytes in one statement, to keep the reactor's turns short
SMALL = 64 * 1024  # messages up to this size are written with their email, larger ones in separate pieces

# The columns of the table emails, with their types. `_row` has a value for each.
_EMAILS = {
    "account_id": "uuid", "email_id": "uuid", "created_at": "timestamptz", "source": "text", "key_id": "uuid", "domain_id": "uuid",
    "message_id": "text", "sender": "text", "to_": "text[]", "cc": "text[]", "bcc": "text[]", "reply_to": "text[]", "recipients": "text[]",
    "subject": "text", "tags": "jsonb", "headers": "jsonb", "envelope": "jsonb", "size": "integer", "bulk": "boolean",
    "scheduled_at": "timestamptz", "topic_id": "uuid", "broadcast_id": "uuid", "contact_id": "uuid", "merge": "jsonb",
    "untracked": "boolean", "encrypted": "boolean", "compressed": "boolean",
}  # fmt: skip
_INSERT = statement(
    "mailsvc.store.mail",
    "insert_emails",
    failure=FAILURE,
    types=", ".join(f"{name} {type}" for name, type in _EMAILS.items()),
    columns=", ".join(_EMAILS),
)

INSERT_EMAILS = Prepared("accept", ("json", "bytea"), _INSERT)
INSERT_PIECE = Prepared(
    "piece", ("uuid", "uuid", "smallint", "bytea"), "INSERT INTO messages (account_id, email_id, piece, bytes) VALUES ($1, $2, $3, $4)"
)


def shard(account_id: UUID) -> int:
    """The shard of the event ledger that an account belongs to."""
    return account_id.int % SHARDS


def document(rows: object) -> str:
    """Rows as a single JSON parameter."""
    try:
        return orjson.dumps(rows).decode()
    except orjson.JSONEncodeError:
        raise DataRejected("22021") from None  # a lone surrogate, or a number that JSON cannot represent


def documents(emails: Iterable[NewEmail], hashes: Hashes | None = None, compress: bool = False) -> Iterator[tuple[str, bytes]]:
    """Parameters of INSERT_EMAILS, sorted by ID, each pair with at most about STATEMENT bytes of messages.

    Without `hashes`, suppressions whose address was erased do not count. `compress`: small messages that are not encrypted are compressed.
    """
    rows: list[dict[str, object]] = []
    bodies: list[bytes] = []
    size = 0
    for email in sorted(emails, key=lambda e: e.email_id.int):
        row = _row(email)
        body = _body(email, row, compress)
        length = sum(map(len, body))
        if rows and size + length > STATEMENT:
            yield document(rows), b"".join(bodies)
            rows, bodies, size = [], [], 0
        if hashes is not None:
            row["hashes"] = [" ".join([each.hex() for each in hashes(r.address).values()]) for r in email.recipients]
        if body:
            row["at"], row["length"] = size, length
            bodies += body
            size += length
        rows.append(row)
    if rows:
        yield document(rows), b"".join(bodies)


def _body(email: NewEmail, row: dict[str, object], compress: bool) -> Sequence[bytes]:
    """What is stored of a message with its email, in parts; nothing for a large one, and for one that is composed when it is sent."""
    if len(email.message) > SMALL or email.personal is not None:
        return ()
    if email.cipher is not None:
        return (email.cipher.encrypt(email.email_id, 0, _whole(email.message)),)
    if compress and (block := compressed(_whole(email.message))) is not None:
        row["compressed"] = True
        return (block,)
    return (email.message,) if isinstance(email.message, bytes) else tuple(email.message)


def pieces(email: NewEmail) -> Iterator[bytes]:
    """The parameters of INSERT_PIECE: the pieces of a large message; nothing for a small one. Each is encrypted when its turn comes."""
    if len(email.message) > SMALL:
        cut = _cut([email.message] if isinstance(email.message, bytes) else email.message)
        if email.cipher is None:
            yield from cut
        else:
            yield from (email.cipher.encrypt(email.email_id, number, piece) for number, piece in enumerate(cut))


def _cut(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        yield from (chunk[start : start + PIECE] for start in range(0, len(chunk), PIECE))


def _whole(message: bytes | Pieces) -> bytes:
    return message if isinstance(message, bytes) else b"".join(message)


def _row(email: NewEmail) -> dict[str, object]:
    scheduled_at = email.scheduled_at
    row: dict[str, object] = {
        "account_id": email.account_id,
        "email_id": email.email_id,
        "created_at": email.created_at,
        "source": email.source,
        "key_id": email.key_id,
        "domain_id": email.domain_id,
        "message_id": email.message_id,
        "sender": email.sender,
        "to_": email.to,
        "cc": email.cc,
        "bcc": email.bcc,
        "reply_to": email.reply_to,
        "recipients": [r.address for r in email.recipients],
        "subject": email.subject,
        "tags": [{"name": name, "value": value} for name, value in email.tags] if email.tags else None,
        "headers": dict(email.headers) if email.headers else None,
        "envelope": email.envelope.stored(),
        "size": len(email.message),
        "bulk": email.bulk,
        "scheduled_at": scheduled_at,
        "expires_at": email.expires_at,
        "region": email.region,
        "destinations": [r.destination for r in email.recipients],
        "leases": [email.lease if r.leased else None for r in email.recipients],
        "notify": notify_bits(email.envelope),
        "event_id": uuid7(email.created_at.timestamp()),
        "type": "email.sent" if scheduled_at is None else "email.scheduled",
        "data": None if scheduled_at is None else Schedule(scheduled_at).stored(),
        "shard": shard(email.account_id),
    }
    if email.topic_id is not None:
        row["topic_id"] = email.topic_id
    if email.cipher is not None:
        row["encrypted"] = True
    if (personal := email.personal) is not None:
        row |= {"broadcast_id": personal.broadcast_id, "contact_id": personal.contact_id, "merge": personal.values or None}
        row["size"], row["untracked"] = personal.size, personal.untracked or None
    return row
